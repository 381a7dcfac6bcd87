"""Compares Keras' fit with ge.fit on several replicas: python -m benchmarks.keras_fit.

Each case of `keras_cases.py` is trained both ways on each strategy. The reference is fit on one
replica. A cell of the table that it prints has the largest difference of a weight, a loss or
another metric of any epoch, training and validation; or the error. Losses of single outputs are
excluded: fit takes means over batches as if all had the same size. The speed is ge.fit over fit
with the same steps_per_execution, 10 unless a callback wants each batch, in whole epochs with
validation and checkpoints.

    python -m benchmarks.keras_fit --cases='["AUC", "embedding"]' --strategies=one,workers --speed
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import flags, logging

import gin_estimator as ge
from benchmarks.keras_cases import CASES, Case

# Arguments of the launcher.
_CLUSTERS = {"workers": ["--workers=2"], "servers": ["--workers=2", "--ps=1"]}
_TITLES = {
    "one": "1 replica",
    "mirrored": "Mirrored x2",
    "workers": "2 workers",
    "servers": "2 workers, 1 server",
}
_REPEATS = 100  # Times the data, in an epoch whose speed is measured.


class _Clock(keras.callbacks.Callback):
    """Notes when epochs end."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.times.append(time.perf_counter())

    def secs(self) -> float:
        """Returns the seconds of an epoch after the first."""
        return statistics.median(np.diff(self.times))


def _kill_once(folder: pathlib.Path) -> None:
    """Kills this process, or the last worker of a cluster, at the first call for a folder."""
    index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 1)
    if index == 1 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class _KillingCallback(keras.callbacks.Callback):
    def __init__(self, step: int, folder: pathlib.Path) -> None:
        super().__init__()
        self.step, self.folder = step, folder

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step -= 1
        if not self.step:
            _kill_once(self.folder)


class _KillingHook(ge.Hook):
    def __init__(self, step: int, folder: pathlib.Path) -> None:
        self.every_steps, self.folder = step, folder

    def after_step(self, run: ge.RunContext) -> None:
        _kill_once(self.folder)


class Fit:
    """Keras' fit under a strategy."""

    def strategy(self, name: str) -> tf.distribute.Strategy:
        """Returns the strategy as Keras' tutorials make it; a worker of servers stays in it."""
        if name == "workers":
            return tf.distribute.MultiWorkerMirroredStrategy()
        if name != "servers":
            return _local(name)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type != "chief":
            tf.distribute.Server(
                resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
            ).join()
        return tf.distribute.ParameterServerStrategy(resolver)

    def train(self, case: Case, strategy: tf.distribute.Strategy, folder: pathlib.Path) -> Any:
        """Returns the model and the history; without a strategy, of a training without a kill."""
        callbacks = case.callbacks()
        if case.kill_step and strategy.num_replicas_in_sync > 1:
            callbacks += [
                keras.callbacks.BackupAndRestore(folder / "backup"),
                _KillingCallback(case.kill_step, folder),
            ]
        return self._fit(case, strategy, case.inputs(), case.epochs, callbacks)

    def epoch_secs(self, case: Case, strategy: tf.distribute.Strategy) -> float:
        """Returns the seconds of an epoch of `_REPEATS` times the data."""
        clock, steps = _Clock(), case.steps_per_execution
        callbacks = [clock, *case.batch_callbacks()]
        self._fit(case, strategy, case.inputs(_REPEATS), 4, callbacks, steps)
        return clock.secs()

    def _fit(
        self,
        case: Case,
        strategy: tf.distribute.Strategy,
        inputs: dict[str, Any],
        epochs: int,
        callbacks: Sequence[keras.callbacks.Callback],
        steps_per_execution: int = 1,
    ) -> Any:
        with strategy.scope():
            model = case.make_model(steps_per_execution)
        options: dict[str, Any] = {"epochs": epochs, "verbose": 0, "callbacks": list(callbacks)}
        if isinstance(strategy, tf.distribute.ParameterServerStrategy):
            inputs = {"x": case.training().repeat(), "steps_per_epoch": case.steps}
        history = model.fit(**inputs, validation_data=case.validation(), **options)
        return model, history.history


class GeFit:
    """ge.fit under a strategy."""

    def strategy(self, name: str) -> tf.distribute.Strategy:
        """Returns the strategy; a worker of servers stays in it."""
        if name == "workers":
            return ge.multi_worker()
        if name == "servers":
            return ge.parameter_server(ge.RunConfig(execution="parameter_server"))
        return _local(name)

    def train(self, case: Case, strategy: tf.distribute.Strategy, folder: pathlib.Path) -> Any:
        """Returns the model and the history."""
        options = _input_functions(case)
        if isinstance(strategy, tf.distribute.ParameterServerStrategy):
            options = {"x": lambda: case.training().repeat(), "steps_per_epoch": case.steps}
        if case.kill_step:
            options["hooks"] = [_KillingHook(case.kill_step, folder)]
        # Saved in the middle of an epoch, before the kill.
        saving = {"save_checkpoints_steps": case.kill_step - 1} if case.kill_step else {}
        config = ge.RunConfig(folder / "run", train_distribute=strategy, **saving)
        result = ge.fit(
            case.make_model,
            validation_data=case.validation,
            epochs=case.epochs,
            callbacks=case.callbacks(),
            config=config,
            **options,
        )
        return result.model, result.history

    def epoch_secs(self, case: Case, strategy: tf.distribute.Strategy) -> float:
        """Returns the seconds of an epoch of `_REPEATS` times the data."""
        clock = _Clock()
        with tempfile.TemporaryDirectory() as folder:
            ge.fit(
                lambda: case.make_model(case.steps_per_execution),
                **_input_functions(case, _REPEATS),
                validation_data=case.validation,
                epochs=4,
                callbacks=[clock, *case.batch_callbacks()],
                config=ge.RunConfig(folder, train_distribute=strategy),
            )
        return clock.secs()


def _input_functions(case: Case, repeats: int = 1) -> dict[str, Any]:
    """Returns the arguments of ge.fit with a function in place of a dataset."""
    return case.inputs(repeats) if case.is_in_arrays else {"x": lambda: case.inputs(repeats)["x"]}


_WAYS = {"fit": Fit(), "ge.fit": GeFit()}


def _local(name: str) -> tf.distribute.Strategy:
    if name == "one":
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


def _task(options: argparse.Namespace) -> None:
    """Trains all cases in one way on one strategy, as one task of it; writes results of each."""
    way = _WAYS[options.way]
    strategy = way.strategy(options.strategies)
    is_shared = "TF_CONFIG" in os.environ
    is_chief = not is_shared or ge.RunConfig(train_distribute=strategy).is_chief
    for name in options.cases:
        folder = options.out / options.way / options.strategies / name.replace(" ", "-")
        if (folder / "result.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        result = _result(way, CASES[name], strategy, folder, options.speed and not is_shared)
        if is_chief:
            (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def _result(
    way: Fit | GeFit,
    case: Case,
    strategy: tf.distribute.Strategy,
    folder: pathlib.Path,
    speed: bool,
) -> dict[str, Any]:
    try:
        model, history = way.train(case, strategy, folder)
        weights = [each.tolist() for each in model.get_weights()]
        secs = way.epoch_secs(case, strategy) if speed else None
    except Exception as error:  # noqa: BLE001 - The error is the result.
        logging.exception("%s", folder)
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    history = {key: [float(value) for value in values] for key, values in history.items()}
    return {"weights": weights, "history": history, "secs": secs}


def _run(way: str, strategy: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the tasks of a strategy, again after a kill; returns the results by case."""
    arguments = ["--way", way, "--strategies", strategy, "--out", str(options.out)]
    arguments += ["--cases", json.dumps(options.cases), *(["--speed"] if options.speed else [])]
    command = [sys.executable, "-m", "benchmarks.keras_fit", *arguments]
    if strategy in _CLUSTERS:
        launcher = ["-m", "pipeline.launch", *_CLUSTERS[strategy], "--max_restarts=1"]
        module = ["--exit_secs=5", "--module=benchmarks.keras_fit", "--", *arguments]
        command = [sys.executable, *launcher, *module]
    folder = options.out / way / strategy
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        for _ in range(2):
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
            if code != -signal.SIGKILL:
                break
    files = {name: folder / name.replace(" ", "-") / "result.json" for name in options.cases}
    return {
        name: json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"error": "none"}
        for name, file in files.items()
    }


def _cell(result: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    if "error" in result:
        return result["error"][:60]
    pairs = zip(result["weights"], reference["weights"], strict=True)
    weights = max(_difference(ours, theirs) for ours, theirs in pairs)
    ours, theirs = result["history"], reference["history"]
    if ours.keys() != theirs.keys():
        return f"{weights:.0e}, history has {sorted(ours)}"
    if len(ours["loss"]) != len(theirs["loss"]):
        return f"{weights:.0e}, history of {len(ours['loss'])} epochs of {len(theirs['loss'])}"
    # Losses of single outputs are means over batches in fit.
    compared = [key for key in ours if key in ("loss", "val_loss") or not key.endswith("loss")]
    worst = max(weights, *(_difference(ours[key], theirs[key]) for key in compared))
    return f"{worst:.0e}" if worst else "0"


def _difference(ours: Any, theirs: Any) -> float:
    return float(np.max(np.abs(np.subtract(ours, theirs)), initial=0.0))


def _print_table(options: argparse.Namespace, results: Mapping[tuple[str, str], Any]) -> None:
    columns = [(way, strategy) for strategy in options.strategies for way in _WAYS]
    columns.remove(("fit", "one")) if ("fit", "one") in columns else None
    titles = [f"{way}, {_TITLES[strategy]}" for way, strategy in columns]
    speeds = [each for each in options.strategies if options.speed and each not in _CLUSTERS]
    titles += [f"speed, {_TITLES[each]}" for each in speeds]
    print("| Case |", " | ".join(titles), "|")
    print("|---" * (1 + len(titles)) + "|")
    for name in options.cases:
        cells = [_cell(results[each][name], results["fit", "one"][name]) for each in columns]
        for each in speeds:
            secs = [results[way, each][name].get("secs") for way in _WAYS]
            cells.append(f"{secs[0] / secs[1]:.1f}" if all(secs) else "")
        print("|", " | ".join([name, *cells]), "|", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--cases", type=json.loads, default=list(CASES), help="JSON list of names.")
    parser.add_argument("--strategies", default="one,mirrored,workers", help=", ".join(_TITLES))
    parser.add_argument("--out", type=pathlib.Path, help="Folder of results, which are used again.")
    parser.add_argument("--speed", action="store_true", help="Measure the speed as well.")
    parser.add_argument("--way", choices=list(_WAYS), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Prints the table; with `--way`, takes part as a task."""
    options = _options()
    flags.FLAGS.mark_as_parsed()
    logging.set_verbosity(logging.WARNING)
    if options.way:
        _task(options)
        return
    options.strategies = options.strategies.split(",")
    options.out = options.out or pathlib.Path(tempfile.mkdtemp())
    results = {("fit", "one"): _run("fit", "one", options)}
    for strategy in options.strategies:
        for way in _WAYS:
            if (way, strategy) not in results:
                results[way, strategy] = _run(way, strategy, options)
    _print_table(options, results)


if __name__ == "__main__":
    main()
