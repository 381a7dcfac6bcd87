"""Writes the flights for a program that does not know this project.

A folder gets `columns.json`, which says what gin/flights.gin says of each column, with
what was counted over the training data, and a file of arrays for each part of the data.
"""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

import inputs
from inputs.schema import Cross, Encoder, Number
from pipeline import Estimator, RunConfig
from pipeline.command import gin_config

PARTS: Mapping[str, tuple[int, ...]] = {
    "train": tuple(range(1, 11)),
    "november": (11,),
    "december": (12,),
}


def encoder() -> Encoder:
    """Returns the encoder of gin/flights.gin's schema, after reading that file."""
    gin_config.parse(["gin/flights.gin"])
    return gin.get_configurable("Schema")().prepared(None)


def estimator(model_dir: pathlib.Path) -> Estimator:
    """Returns the Estimator of gin/flights.gin, which saves nothing.

    Args:
      model_dir: an empty folder.
    """
    gin_config.parse(["gin/flights.gin"], ["RunConfig.save_checkpoints_steps = 0"])
    config = gin_config.build(RunConfig, model_dir=str(model_dir))
    return gin_config.build(Estimator, config=config)


def write(folder: pathlib.Path, encoder: Encoder) -> None:
    """Writes the columns and the parts.

    Args:
      folder: an empty folder.
      encoder: that of the flights.
    """
    columns = described(encoder)
    (folder / "columns.json").write_text(json.dumps(columns))
    for part, months in PARTS.items():
        frame = inputs.flights_frame(months)
        arrays = {column["name"]: array(frame, column) for column in columns}
        arrays = {name: each for name, each in arrays.items() if each is not None}
        np.savez(folder / f"{part}.npz", late=frame["late"].to_numpy(), **arrays)


def described(encoder: Encoder) -> list[dict[str, Any]]:
    """Returns what is to know of each column, as JSON has it.

    Args:
      encoder: that of the flights.
    """
    found = []
    for field in encoder.fields:
        feature = encoder.schema.features.get(field.name)
        column = {"name": field.name, "embedding": field.embedding}
        if feature is None:  # An indicator.
            source = field.name.removesuffix("_missing")
            column |= {"kind": "number", "missing": source, "mean": 0.0, "std": 1.0}
        elif isinstance(feature, Number):
            counted = encoder.statistics[field.name]
            column |= {"kind": "number", "log": feature.log}
            column |= {"mean": counted.mean, "std": counted.std}
            fill = math.expm1(counted.mean) if feature.log else counted.mean
            column["fill"] = fill if feature.default is ... else feature.default
        elif isinstance(feature, Cross):
            buckets = feature.hash_buckets
            column |= {"kind": "cross", "of": feature.of, "buckets": buckets}
        elif feature.holds_ids:
            column |= {"kind": "id", "size": feature.size}
        else:
            words = encoder.statistics[field.name].vocabulary
            # The word '' is what is missing.
            column |= {"kind": "word", "vocabulary": [*words, ""]}
        found.append(column)
    return found


def array(frame: Any, column: Mapping[str, Any]) -> np.ndarray | None:
    """Returns the values of a column, none missing; None of a cross.

    Args:
      frame: flights.
      column: what `described` says of it.
    """
    name, kind = column["name"], column["kind"]
    if kind == "cross":
        return None
    if kind == "word":
        return np.array(frame[name].fillna("").tolist(), "S")
    if "missing" in column:
        return frame[column["missing"]].isna().to_numpy(np.float32)
    if kind == "number":
        return frame[name].fillna(column["fill"]).to_numpy(np.float32)
    return frame[name].to_numpy(np.int64)
