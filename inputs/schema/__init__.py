"""One declaration of what each feature is, shared by readers, models and servers.

    schema = inputs.Schema(
        features={
            "distance": {"kind": "number", "log": True, "scale": "standard"},
            "carrier": "word",
            "plane": {"kind": "word", "hash_buckets": 5000, "embedding": 16},
        },
        other_columns={"late": "id"},
        source=reader,
    )
    encoder = schema.prepared(config)
    encoder.encode({"distance": ..., "carrier": ..., "plane": ...})

Its files, each before those that import it:

    checks           arguments of features
    vocabulary_file  words of a text file
    features         Number, Category, Bag, Cross: what is declared
    kinds            a dict with its kind -> a feature
    statistics       what the training data say of a feature
    refusals         what is wrong with the values of a batch
    lookups          words and ids -> places in a vocabulary
    rows             words and ids -> rows of a table
    fields           what a model sees
    numbers          numbers -> numbers, or buckets
    raw_values       columns, checked, with their defaults
    encoding         Encoder: columns -> what a model sees
    counting         one pass over the training data -> statistics
    record           schema.json: what was declared and counted
    agreed           all that a run does goes by the same statistics
    schema           Schema: all features, and what else is read
"""

from .encoding import Encoder
from .features import MISSING_ID, Bag, Category, Cross, Number
from .fields import Field
from .schema import Schema
from .statistics import FeatureStatistics

__all__ = [
    "MISSING_ID",
    "Bag",
    "Category",
    "Cross",
    "Encoder",
    "FeatureStatistics",
    "Field",
    "Number",
    "Schema",
]
