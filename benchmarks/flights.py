"""Compares the networks for tables with others on the flights of 2013.

    python -m benchmarks.flights [--estimator_python=PATH] [--networks_alone]

All see the same columns, those of gin/flights.gin: January to October to learn from,
November to choose settings by, December to test. The measure is the area under the
curve, exact, of predictions. With the Python of a virtual environment that has
TensorFlow 2.15, tf.estimator does the same. What comes of it is kept in flights.json
beside this file.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Threads that wait for each other in a loop, as OpenMP's do, crawl on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tensorflow as tf
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import inputs
from benchmarks import flights_columns
from benchmarks.flights_columns import PARTS
from inputs.schema import Encoder
from pipeline import Estimator, RunConfig, TrainSpec
from pipeline.command import gin_config

RECORD = pathlib.Path(__file__).with_name("flights.json")
OURS = {
    "wide & deep": "flights.gin",
    "DCN v2": "flights_dcn_v2.gin",
    "DeepFM": "flights_deep_fm.gin",
}
_TESTS = ("november", "december")
# Our settings of wide & deep, and tf.estimator's optimizer with a rate that suits it.
_OURS = {"wide_rate": 0.05, "hidden": [128, 64], "dropout": 0.3}
ESTIMATOR = (
    {**_OURS, "optimizer": "Adam", "rate": 0.001, "decay_steps": 2000},
    {**_OURS, "optimizer": "Adagrad", "rate": 0.05},
)
STEPS = (2000,)

# Of one trained model: which it was, and its area under the curve by month.
Result = tuple[str, Mapping[str, float]]


def logistic_regressions(encoder: Encoder) -> Iterator[Result]:
    """Yields those of several strengths, without the schema's crosses and with them.

    Args:
      encoder: that of the flights.
    """
    fields = {f.name: f for f in encoder.fields}
    numbers = [name for name, field in fields.items() if field.kind == "number"]
    words = [name for name, field in fields.items() if field.kind == "category"]
    parts = {}
    for part, months in PARTS.items():
        features, labels = _encoded(encoder, months)
        columns = [features[name].numpy() for name in (*numbers, *words)]
        parts[part] = (np.stack(columns, 1), labels.numpy())
    plain = [w for w in words if encoder.schema.features[w].kind != "cross"]
    for name, given in (("", plain), (", with the crosses", words)):
        places = [len(numbers) + words.index(word) for word in given]
        for strength in (0.01, 0.1, 1.0):
            one_hot = OneHotEncoder(handle_unknown="ignore")
            columns = ColumnTransformer(
                [
                    ("numbers", StandardScaler(), slice(len(numbers))),
                    ("words", one_hot, places),
                ]
            )
            model = make_pipeline(
                columns, LogisticRegression(C=strength, max_iter=1000)
            )
            yield f"logistic regression{name}", _fitted(model, parts)


def boosting(encoder: Encoder) -> Iterator[Result]:
    """Yields gradient boosting, which sees missing numbers as such, and no crosses.

    Args:
      encoder: that of the flights.
    """
    fields = [
        field
        for field in encoder.fields
        if field.name in encoder.schema.features
        and encoder.schema.features[field.name].kind != "cross"
    ]
    parts = {}
    for part, months in PARTS.items():
        frame = inputs.flights_frame(months)
        features, labels = _encoded(encoder, months)
        columns = [
            frame[field.name].to_numpy(np.float64)
            if field.kind == "number"
            else features[field.name].numpy()
            for field in fields
        ]
        parts[part] = (np.stack(columns, 1), labels.numpy())
    for count in (100, 300):
        model = HistGradientBoostingClassifier(
            max_iter=count,
            categorical_features=[field.kind == "category" for field in fields],
            early_stopping=False,
            random_state=0,
        )
        yield "HistGradientBoosting", _fitted(model, parts)


def ours(seed: int) -> Iterator[Result]:
    """Yields our networks, trained as their gin files say.

    Args:
      seed: of weights and order.
    """
    bindings = [
        f"RunConfig.tf_random_seed = {seed}",
        f"dataframe_input_fn.seed = {seed}",
        "RunConfig.save_checkpoints_steps = 0",
    ]
    for name, file in OURS.items():
        with tempfile.TemporaryDirectory() as folder:
            gin_config.parse([file], bindings)
            config = gin_config.build(RunConfig, model_dir=folder)
            estimator = gin_config.build(Estimator, config=config)
            train = gin_config.build(TrainSpec)
            estimator.train(train.input_fn, max_steps=train.max_steps)
            yield name, {part: _tested(estimator, PARTS[part]) for part in _TESTS}


def estimators(python: str, encoder: Encoder, seed: int) -> Iterator[Result]:
    """Yields tf.estimator's DNNLinearCombinedClassifier, of several settings and steps.

    Args:
      python: interpreter that has TensorFlow 2.15.
      encoder: that of the flights.
      seed: of weights and order.
    """
    script = pathlib.Path(__file__).with_name("tf_estimator_flights.py")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        flights_columns.write(folder, encoder)
        truth = {part: np.load(folder / f"{part}.npz")["late"] for part in _TESTS}
        for settings in ESTIMATOR:
            how = json.dumps({**settings, "seed": seed, "steps": STEPS})
            subprocess.run([python, str(script), name, how], check=True)
            for step in STEPS:
                found = np.load(folder / f"{step}.npz")
                areas = {p: roc_auc_score(truth[p], found[p]) for p in _TESTS}
                yield "tf.estimator 2.15.1, wide & deep", areas


def _encoded(encoder: Encoder, months: tuple[int, ...]) -> Any:
    frame = inputs.flights_frame(months)
    batches = inputs.dataframe_input_fn(
        "eval",
        columns=encoder.schema,
        label="late",
        eval_frame=frame,
        batch_size=len(frame),
        config=None,
    )
    return next(iter(batches))


def _fitted(model: Any, parts: Mapping[str, Any]) -> Mapping[str, float]:
    model.fit(*parts["train"])
    return {
        part: roc_auc_score(y, model.predict_proba(x)[:, 1])
        for part, (x, y) in parts.items()
        if part in _TESTS
    }


def _tested(estimator: Estimator, months: tuple[int, ...]) -> float:
    """Returns the area under the curve of what is predicted for some months."""
    frame = inputs.flights_frame(months)

    def input_fn(mode: str, config: RunConfig) -> tf.data.Dataset:
        # The columns are those that gin binds.
        return inputs.dataframe_input_fn(
            mode, eval_frame=frame, batch_size=4096, config=config
        )

    batches = estimator.predict(input_fn, yield_single_examples=False)
    found = np.concatenate([batch["logistic"][:, 0] for batch in batches])
    return roc_auc_score(frame["late"], found)


def _best(results: Iterator[Result]) -> dict[str, dict[str, float]]:
    """Returns of each kind the model that is best in November."""
    found: dict[str, dict[str, float]] = {}
    for name, areas in results:
        areas = {part: round(float(area), 4) for part, area in areas.items()}
        print(name, areas, flush=True)
        if name not in found or areas["november"] > found[name]["november"]:
            found[name] = areas
    return found


def main() -> None:
    """Prints the areas of all that is tried; keeps the best of each kind and seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--networks_alone", action="store_true", help="nothing of scikit-learn"
    )
    parser.add_argument(
        "--estimator_python", help="interpreter that has tensorflow-cpu==2.15.1"
    )
    given = parser.parse_args()
    encoder = flights_columns.encoder()
    if not given.networks_alone:
        for make in (boosting, logistic_regressions):
            _keep([_best(make(encoder))])
    _keep([_best(ours(seed)) for seed in range(given.seeds)])
    if given.estimator_python:
        python = given.estimator_python
        _keep([_best(estimators(python, encoder, seed)) for seed in range(given.seeds)])


def _keep(runs: list[dict[str, dict[str, float]]]) -> None:
    """Puts what runs came to into the record, in place of what it has of the same."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record |= {name: [run[name] for run in runs] for name in runs[0]}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
