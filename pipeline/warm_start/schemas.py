"""Compares the schemas of two runs, one of which begins with the values of the other.

A table's rows stand for words, and a network's weights for numbers of one scale. Which
words, and which scale, is in `schema.json` of each model_dir, as `inputs.Schema` has
written it.
"""

import json
import os
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.model_dir import atomic_file
from pipeline.warm_start.warm_start_settings import WarmStartSettings

FILE = "schema.json"

# What a feature declares of the rows of its table, or of its scale.
_DECLARED = (
    *("kind", "log", "scale", "clip", "buckets"),
    *("vocabulary", "size", "hash_buckets", "unknown", "of"),
)


def say_differences(source: WarmStartSettings, model_dir: str) -> None:
    """Logs a warning of the features that mean something else in the other run.

    Those for whose tables there is a `VocabInfo` are left to it, and so are all others.

    Args:
      source: what is taken over.
      model_dir: folder of this run.
    """
    path = source.ckpt_to_initialize_from
    if path is None or source.var_name_to_vocab_info:
        return
    folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    there, here = _read(folder), _read(model_dir)
    differing = [name for name in here if here[name] != there.get(name, here[name])]
    if differing:
        logging.warning(
            "warm start | the features %s are another thing in %s than in this run: "
            "rows of their tables stand for other words, or their numbers have "
            "another scale. To go by that run's, declare them alike, and write "
            "Schema.statistics = %r.",
            differing,
            folder,
            os.path.join(folder, FILE),
        )


def _read(folder: str) -> dict[str, Any]:
    """Returns what is declared and counted, by feature; nothing without a record."""
    try:
        content = json.loads(atomic_file.read(os.path.join(folder, FILE)) or "{}")
        features = content.get("features", {})
        statistics = content.get("statistics", {})
        return {
            name: ([feature.get(k) for k in _DECLARED], statistics.get(name))
            for name, feature in features.items()
        }
    except (ValueError, AttributeError, tf.errors.OpError):
        return {}  # Whoever needs it says so.
