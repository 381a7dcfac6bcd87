# SPDX-License-Identifier: Apache-2.0
"""Declares each feature of tabular data once, for readers, networks and SavedModels.

A reader with `columns=schema` returns encoded features, networks are built from
`schema.prepared().fields`, and `serving_input_receiver_fn` of the same takes raw columns.
"""

from .count import FeatureStatistics as FeatureStatistics
from .declare import Feature as Feature
from .declare import Schema as Schema
from .encode import Encoder as Encoder
from .encode import Field as Field
