"""Declares each feature of tabular data once, for readers, networks and SavedModels.

A reader with `columns=schema` returns encoded features, networks are built from
`schema.prepared().fields`, and `serving_input_receiver_fn` of the same takes raw columns.
"""

from .count import FeatureStatistics as FeatureStatistics
from .declare import Bag as Bag
from .declare import Category as Category
from .declare import Cross as Cross
from .declare import Number as Number
from .declare import Schema as Schema
from .encode import Encoder as Encoder
from .encode import Field as Field
