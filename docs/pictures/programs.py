"""The trainings of the pictures: python -m docs.pictures.programs NAME FOLDER.

Each writes to FOLDER, or prints lines that the launcher labels with the task.
"""

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

import gin_estimator as ge

# Seconds that each worker of `lockstep` waits for a batch: the second one is slow.
READ_SECS = (0.02, 0.1)
_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=[400, 2]).astype("float32")
_Y = (_X[:, 0] * _X[:, 1] > 0).astype("int64")


def _modules(rate: float = 0.01, units: int = 16, outputs: int = 2) -> dict[str, Callable[[], Any]]:
    layers = keras.layers
    return {
        "network": lambda: keras.Sequential(
            [layers.Dense(units, "relu"), layers.Dense(units, "relu"), layers.Dense(outputs)]
        ),
        "optimizer": lambda: keras.optimizers.Adam(rate),
    }


def _has_servers() -> bool:
    return "ps" in json.loads(os.environ["TF_CONFIG"])["cluster"]


def _config(folder: pathlib.Path, **fields: Any) -> ge.RunConfig:
    if "TF_CONFIG" in os.environ:
        fields["execution"] = "parameter_server" if _has_servers() else "multi_worker"
    quiet = {"log_step_count_steps": None, "save_summary_steps": None, "progress": False}
    return ge.RunConfig(folder / "run", tf_random_seed=1, **quiet, **fields)


def _model_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def _data() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((_X, _Y))


def _write(folder: pathlib.Path, result: Any) -> None:
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


class _Notes(ge.Hook, ge.SavingListener):
    """Notes each step and checkpoint in a file of this task; each step takes 0.1 s longer."""

    every_steps = 1

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file
        self._note(began=psutil.Process().create_time())

    def after_step(self, run: ge.RunContext) -> None:
        self._note(step=run.step, loss=float(run.report.loss))
        time.sleep(0.1)

    def after_save(self, run: ge.RunContext) -> None:
        self._note(saved=run.step)

    def _note(self, **values: Any) -> None:
        values = {"at": time.time(), "pid": os.getpid(), **values}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def kill(folder: pathlib.Path) -> None:
    """Trains on two workers, and notes what happens when."""
    config = _config(folder, save_checkpoints_steps=20)
    notes = _Notes(folder / f"{config.task_id}.jsonl")
    estimator = ge.Estimator(_model_fn, modules=_modules(), config=config)
    estimator.train(
        lambda: _data().shuffle(400, seed=1).repeat().batch(32),
        max_steps=100,
        hooks=[notes],
        saving_listeners=[notes],
    )
    if config.is_chief:
        weights = [np.ravel(v.numpy()) for v in estimator.state.modules["network"].weights]
        _write(folder, np.concatenate(weights).tolist())


class _Rows(ge.Hook):
    every_steps, wants_tensors = 1, True

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def after_step(self, run: ge.RunContext) -> None:
        arrays = {name: array.tolist() for name, array in run.report.tensors.items()}
        self.steps.append({**arrays, "loss": float(run.report.loss)})


def _rows_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
    """Returns which replica gets which rows; the loss of an example is its number."""
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    zeros = tf.reduce_sum(network(labels), -1) * 0.0
    return ge.EstimatorSpec(
        mode,
        loss=zeros + tf.cast(features, tf.float32),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        tensors={"rows": features, "replicas": tf.zeros_like(features, tf.int32) + replica},
    )


def rows(folder: pathlib.Path) -> None:
    """Trains on 21 examples in batches of 8, on four replicas."""

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((np.arange(1, 22), _X[:21])).batch(8)

    config = _config(folder, devices=[f"CPU:{index}" for index in range(4)])
    estimator = ge.Estimator(_rows_fn, modules=_modules(), config=config)
    estimator.train(input_fn, hooks=[seen := _Rows()])
    _write(folder, seen.steps)


def _did(*what: str) -> None:
    print("DID", *what, flush=True)


class _Saves(ge.SavingListener):
    def after_save(self, run: ge.RunContext) -> None:
        if run.is_chief:
            _did("saves")


def roles(folder: pathlib.Path) -> None:
    """Trains and evaluates in a cluster; each task prints what it does."""

    def input_fn(mode: str, input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        def shown(*example: Any) -> Any:
            tf.print(f"DID reads {mode}")
            return example

        batches = _data().take(40).batch(8).map(shown)
        return batches.repeat() if mode == ge.ModeKeys.TRAIN else batches

    def model_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
        tf.print(f"DID computes {mode}")
        return _model_fn(features, labels, mode, network, optimizer)

    config = _config(folder, save_checkpoints_steps=10)
    estimator = ge.Estimator(model_fn, modules=_modules(), config=config)
    train_spec = ge.TrainSpec(input_fn, max_steps=20, saving_listeners=[_Saves()])
    eval_spec = ge.EvalSpec(input_fn, start_delay_secs=0, throttle_secs=0)
    ge.train_and_evaluate(estimator, train_spec, eval_spec)
    if config.task_type == "chief" or (config.task_type == "worker" and not _has_servers()):
        for variable in estimator.state.modules["network"].trainable_variables:
            _did("variable", variable.value.device)


def _slow(dataset: tf.data.Dataset, secs: float) -> tf.data.Dataset:
    """Waits before each element, on a worker of parameter servers too, without a processor."""
    spec = dataset.element_spec
    slept = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        sleep_microseconds=int(secs * 1e6),
        output_types=[each.dtype for each in tf.nest.flatten(spec)],
        output_shapes=[each.shape for each in tf.nest.flatten(spec)],
    )
    return tf.data.experimental.from_variant(slept, spec)


def lockstep(folder: pathlib.Path) -> None:
    """Trains in a cluster with a slow worker; each one prints the times of its batches."""

    def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        worker = input_context.input_pipeline_id
        batches = _data().repeat().batch(16)
        return _slow(batches.map(lambda x, y: ((x, worker), y)), READ_SECS[worker])

    def model_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
        x, worker = features
        with tf.control_dependencies([worker]):
            now = tf.strings.as_string(tf.timestamp(), precision=4)
        tf.print("BATCH", worker, now)
        return _model_fn(x, labels, mode, network, optimizer)

    config = _config(folder, save_checkpoints_steps=100_000)
    ge.Estimator(model_fn, modules=_modules(), config=config).train(input_fn, max_steps=300)


class _Evaluations(ge.Hook):
    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def after_evaluation(self, run: ge.RunContext, name: str, metrics: Any) -> None:
        self.points.append((run.step, float(metrics["loss"])))


def evaluations(folder: pathlib.Path) -> None:
    """Trains on 60 examples of which a fifth has a wrong label, until the rule stops."""
    labels = np.where(np.arange(60) % 5 == 0, 1 - _Y[:60], _Y[:60])
    train = tf.data.Dataset.from_tensor_slices((_X[:60], labels)).repeat().batch(30)
    patience = 200
    rule = ge.EarlyStopping("loss", patience_steps=patience, restore_best=True)
    estimator = ge.Estimator(
        _model_fn,
        modules=_modules(0.002, units=32),
        config=_config(folder, save_checkpoints_steps=15),
    )
    metrics, _ = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(lambda: train, max_steps=2000, hooks=[seen := _Evaluations()]),
        ge.EvalSpec(lambda: _data().skip(60).batch(340), early_stopping=rule),
    )
    final = [int(metrics["global_step"]), float(metrics["loss"])]
    _write(folder, {"evaluations": seen.points, "final": final, "patience_steps": patience})


class _Losses(ge.Hook):
    """Keeps the losses of each compiled call, also of calls whose steps do not count."""

    wants_losses = True

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[float]]] = []

    def after_loop(self, run: ge.RunContext) -> None:
        report = run.report
        first = run.step - report.num_steps + 1
        self.calls.append((first, [float(loss) for loss in report.losses]))


def _regression_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
    return ge.EstimatorSpec(
        mode,
        loss=(network(features)[:, 0] - labels) ** 2,
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def spike(folder: pathlib.Path) -> None:
    """Trains on 300 batches, one of them with labels that are 30 times as large, in two ways."""
    x = _RNG.normal(size=[300, 16, 2]).astype("float32")
    y = np.sin(2 * x[..., 0]) + x[..., 1] + 0.3 * _RNG.normal(size=[300, 16]).astype("float32")
    y[162] *= 30
    result: dict[str, Any] = {"save_steps": 50}
    for name, guards in {"guarded": [ge.hooks.LossGuard(spike=10.0)], "plain": []}.items():
        estimator = ge.Estimator(
            _regression_fn,
            modules=_modules(outputs=1),
            config=_config(folder / name, save_checkpoints_steps=50),
        )
        data = tf.data.Dataset.from_tensor_slices((x, y.astype("float32")))
        estimator.train(lambda data=data: data, hooks=[seen := _Losses(), *guards])
        result[name] = seen.calls
    records = sorted((folder / "guarded/run/bad_batches").glob("step-*"))
    result["skipped"] = [int(each.name.rpartition("-")[2]) for each in records]
    _write(folder, result)


def main(argv: list[str]) -> None:
    """Runs one training."""
    programs = {each.__name__: each for each in (kill, rows, roles, lockstep, evaluations, spike)}
    programs[argv[1]](pathlib.Path(argv[2]))


if __name__ == "__main__":
    ge.run(main)
