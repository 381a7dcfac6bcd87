# SPDX-License-Identifier: Apache-2.0
"""Runs Keras' callbacks in a training of the driver."""

import contextlib
import functools
import importlib.util
import io
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from .. import private
from ..contract.checks import objects
from ..contract.hooks import Hook, Report, RunContext, as_text
from ..contract.user_errors import annotate_method_errors
from ..errors import UserValueError
from ..estimator.estimator import Estimator
from ..model_dir import storage_watchdog
from ..model_dir.evaluation_results import higher_is_better
from ..run.progress import show_line
from .compiled import compile_parts

_callbacks = keras.callbacks
# Callbacks whose own methods for batches need not be called in each of them.
_KNOWN = (_callbacks.ModelCheckpoint, _callbacks.TensorBoard, _callbacks.TerminateOnNaN)
_WRITERS = (_callbacks.ModelCheckpoint, _callbacks.TensorBoard, _callbacks.CSVLogger)
_TRAIN_BATCH = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_BATCH = ("on_test_batch_begin", "on_test_batch_end")
# Methods of a model that Keras cannot run on several replicas.
_ON_COPY = ("evaluate", "predict", "test_on_batch", "predict_on_batch")
# Ends of the names of Keras' classes of metrics.
_HIGHER = ("AUC", "Accuracy", "Correlation", "IoU", "Precision", "Recall", "Score", "Sensitivity")
_HIGHER += ("Similarity", "Specificity")
_LOWER = ("Crossentropy", "Divergence", "Error", "Hinge", "Poisson")
_SIMPLE = (bool, int, float, str, np.bool_, np.integer, np.floating, type(None))


def checked(callbacks: Any) -> tuple[keras.callbacks.Callback, ...]:
    """Returns callbacks as a tuple, after checking that each can do its work.

    A BackupAndRestore is left out, with a line in the log.

    Raises:
      UserTypeError: an object is not a callback.
      UserValueError: an option cannot work, or its package is not installed.
    """
    found = objects("callbacks", callbacks, _callbacks.Callback)
    for each in found:
        kind = type(each).__name__
        if isinstance(each, _callbacks.BackupAndRestore):
            logging.warning(
                "fit | %s does nothing: each run continues from the last checkpoint of "
                "RunConfig(model_dir=...).",
                kind,
            )
        is_board = isinstance(each, _callbacks.TensorBoard)
        if is_board and importlib.util.find_spec("tensorboard") is None:
            raise UserValueError(
                f"callbacks has a {kind}, and tensorboard is not installed. Run python -m pip "
                "install tensorboard, or leave it out: model_dir has events of the training."
            )
        if private.profiles_batches(each):
            raise UserValueError(
                f"{kind}.profile_batch is set: expected 0. Pass hooks=[ge.ProfilerHook(...)]."
            )
    return tuple(each for each in found if not isinstance(each, _callbacks.BackupAndRestore))


def steps_between_batches(callback: keras.callbacks.Callback) -> int | None:
    """Returns the steps after which a callback has to be called for a batch; None for never."""
    if any(_has(callback, method) for method in _TRAIN_BATCH):
        return 1
    freq: Any = "epoch"
    if isinstance(callback, _callbacks.ModelCheckpoint):
        freq = callback.save_freq
    elif isinstance(callback, _callbacks.TensorBoard):
        freq = callback.update_freq
        if freq != "epoch" and callback.write_steps_per_second:
            return 1  # It measures the time of a call.
    return None if freq == "epoch" else max(1, int(freq))


def _has(callback: Any, method: str) -> bool:
    """Returns whether a callback was given a method that a fit would call."""
    if method in vars(callback):
        return True
    owner = next(kind for kind in type(callback).__mro__ if method in vars(kind))
    return owner not in (*_KNOWN, _callbacks.Callback)


class KerasCallbacks(Hook):
    """Runs callbacks at the ends of epochs and batches, and keeps the history.

        each epoch: steps; `after_loop` ends the batches for which a callback is called
        without validation `after_step` ends it
        (save), evaluate: with validation `after_evaluation` ends it

    A checkpoint has the history, the attributes of callbacks that are numbers or texts, and arrays
    in files. The loop keeps the results of an epoch that has not ended.

    Attributes:
      history: values by name, one for each epoch.
      tests_batches: whether a callback has methods for batches of a validation.
    """

    continues_report = True

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        estimator: Estimator,
        *,
        params: Mapping[str, Any],
        initial_epoch: int = 0,
        validation_freq: int | None = None,
        earlier: tuple[int, ...] | None = None,
        copy: Callable[[], keras.Model],
    ) -> None:
        """Takes the callbacks, a result of `checked`, and their `params` as in Keras.

        An evaluation follows each epoch whose number, from 1, is a multiple of `validation_freq`;
        None for no evaluation. `earlier` are the steps at which earlier calls of the program with
        a model have ended; None for a function. `copy` returns a model outside of any strategy
        with the values of the trained one.
        """
        self.every_steps = params["steps"]
        self.history: dict[str, list[Any]] = {}
        self._callbacks, self._estimator = callbacks, estimator
        self._params, self._epochs = params, params["epochs"]
        self._first, self._freq, self._earlier = initial_epoch, validation_freq, earlier
        self._copy, self._execution = copy, 1
        # Of all callbacks, so that all processes end calls and synchronize at the same steps.
        named = zip(_numbered(callbacks), callbacks, strict=True)
        freqs = {name: steps_between_batches(each) for name, each in named}
        self._freqs = {name: freq for name, freq in freqs.items() if freq is not None}
        self.tests_batches = any(_has(each, m) for each in callbacks for m in _TEST_BATCH)

    @property
    def epoch(self) -> list[int]:
        """Numbers of the epochs in the history."""
        number = max(map(len, self.history.values()), default=0)
        return list(range(self._first, self._first + number))

    def begin(self, run: RunContext) -> None:
        """Forgets an earlier training; callbacks begin when the state is known."""
        self._run, self._saved, self._started = run, {}, False
        self.history, self._pending, self._begun = {}, None, -1
        self._stopped: str | None = None
        self._batch_end: int | None = None  # Step of the next call for a batch.
        self._arrays: dict[str, Any] = {}
        leads = [each for each in self._callbacks if run.is_chief or not isinstance(each, _WRITERS)]
        self._active = dict(zip(_numbered(leads), leads, strict=True))

    def restore(self, run: RunContext, state: Any) -> None:
        """Continues the history, and the epoch that was saved.

        Raises:
          UserValueError: epochs had another number of steps, or another first number, or the
            call began after other calls.
        """
        if (first := state.get("initial_epoch", 0)) != self._first:
            raise UserValueError(
                f"initial_epoch is {self._first}, and {first} in the checkpoint of "
                f"{run.model_dir}: expected the same, since a call continues model_dir. Set "
                f"initial_epoch={first}, or another model_dir."
            )
        if (earlier := state.get("earlier", [])) != list(self._earlier or []):
            raise UserValueError(
                f"the call of fit in {run.model_dir} began when earlier calls had ended at the "
                f"steps {earlier}, and now they have at {list(self._earlier or [])}: expected the "
                "same, since it begins with their weights. Set another model_dir."
            )
        if state["steps_per_epoch"] != self.every_steps:
            raise UserValueError(
                f"steps_per_epoch is {self.every_steps}, and {state['steps_per_epoch']} in the "
                f"checkpoint of {run.model_dir}: expected the same. Set steps_per_epoch="
                f"{state['steps_per_epoch']}, or another model_dir."
            )
        self.history = {name: list(values) for name, values in state["history"].items()}
        self._pending = state["pending"]
        if state.get("partial"):
            logging.warning(
                "fit | the checkpoint is of an earlier version: the history of this epoch has only "
                "its steps after step %d",
                run.step,
            )
        self._begun, self._stopped, self._saved = state["begun"], state["stopped"], state
        done = self._epoch_at(run.step)
        if run.is_chief and self._stopped is not None:
            logging.warning(
                "fit | %s in an earlier call: nothing is trained. Set another model_dir.",
                self._stopped,
            )
        elif run.is_chief and done >= self._epochs and self._earlier is not None:
            logging.warning(
                "fit | %s has this call's epochs of an earlier start of the program: nothing is "
                "trained. Set another model_dir to train again.",
                run.model_dir,
            )
        elif run.is_chief and done >= self._epochs:
            logging.warning(
                "fit | epochs is %d, and %s has %d of earlier calls: nothing is trained. Set "
                "epochs=%d, or another model_dir.",
                self._epochs,
                run.model_dir,
                done - self._first,
                done + self._epochs - self._first,
            )

    def state(self) -> dict[str, Any]:
        """Returns the data that a restart needs; writes arrays of callbacks to a file."""
        state = {
            **self._saved,
            "steps_per_epoch": self.every_steps,
            "initial_epoch": self._first,
            "earlier": list(self._earlier or []),
            "history": self.history,
            "pending": self._pending,
            "begun": self._begun,
            "stopped": self._stopped,
        }
        if self._started:
            state["learning_rate"] = self._changed_rate()
            state["attributes"] = {name: self._attributes(name) for name in self._active}
            state["arrays"] = self._write_arrays()
        return state

    def next_step(self, step: int) -> int | None:
        """Returns the end of the epoch; called first when all state is restored."""
        self._start()
        return super().next_step(step)

    def next_batch(self, step: int) -> int | None:
        """Returns the next step at which a callback is called for a batch; None for never."""
        self._start()
        ends = [self._end_of_batch(freq, step) for freq in self._freqs.values()]
        self._batch_end = min(ends, default=None)
        return self._batch_end

    def after_loop(self, run: RunContext) -> None:
        """Ends a batch for which callbacks are called, and begins the next one."""
        step = run.step
        if step != self._batch_end:
            return
        due = [n for n, freq in self._freqs.items() if self._end_of_batch(freq, step - 1) == step]
        self._estimator.state.synchronize()
        number = (step - 1) % self.every_steps + 1
        batch = -(-number // self._execution) * self._execution - 1  # As Keras numbers them.
        self._call("on_train_batch_end", batch, among=due, logs=_logs(run.report))
        if number == self.every_steps:  # The epoch ends.
            return
        # All processes are here, and the end of an epoch synchronizes them.
        if not run.agree(self._stopped is not None):
            self._begin_batch(due)
            return
        if self._stopped is None:
            self._stopped = "a callback of another process set model.stop_training"
        self._take_results(run)

    def after_step(self, run: RunContext) -> None:
        """Takes the results of the epoch; ends it if no evaluation follows."""
        self._take_results(run)

    def after_evaluation(self, run: RunContext, name: str, metrics: Mapping[str, Any]) -> None:
        """Ends the epoch with the results of the validation."""
        self._start()
        if self._pending is not None:
            named = {f"val_{key}": _plain(v) for key, v in metrics.items() if key != "global_step"}
            self._end_epoch(run, named)
            run.request_last_save()  # The last step was saved before.

    def end(self, run: RunContext) -> None:
        """Ends the optimizer and the callbacks; the values that they set are saved."""
        if not run.has_ended:
            return
        optimizer = compile_parts(self._model).optimizer
        if optimizer.use_ema:
            optimizer.finalize_variable_values(self._model.trainable_variables)
            run.request_last_save()
        if self._callbacks:  # The same in all processes.
            self._estimator.state.synchronize()
            rows = self._rows()
            self._call("on_train_end", rows[-1] if rows else {})
            run.request_last_save()

    @property
    def _model(self) -> keras.Model:
        return self._estimator.state.modules["network"]

    def _start(self) -> None:
        """Begins the callbacks, or continues those of a checkpoint."""
        if self._started:
            return
        self._started, run, model = True, self._run, self._model
        model.stop_training = False
        self._execution = int(model.steps_per_execution)
        if type(self._estimator.state.replicas.strategy) is not type(tf.distribute.get_strategy()):
            for method in _ON_COPY:
                setattr(model, method, functools.partial(self._call_copy, method))
        for name, each in self._active.items():
            each.set_params(dict(self._params))
            each.set_model(model)
            parts = compile_parts(model)
            _choose_mode(each, [parts.metrics, parts.weighted_metrics])
            self._call_one(each, "on_train_begin", {})
            private.choose_monitor_op(each)
            self._restore(name, each)
        self._fresh = {name: _simple(each) for name, each in self._active.items()}
        self._first_rate = _rate(model)
        if (rate := self._saved.get("learning_rate")) is not None:
            model.optimizer.learning_rate = rate
        for name, kept in self._saved.get("attributes", {}).items():
            if name in self._active:
                vars(self._active[name]).update(kept)
        if self._stopped is not None:
            run.request_stop(self._stopped)
        elif self._pending is None:
            self._begin_epoch(run)

    def _restore(self, name: str, callback: Any) -> None:
        """Gives a callback its arrays, and a file of rows its earlier rows."""
        path = self._saved.get("arrays")
        if path:
            with tf.io.gfile.GFile(os.path.join(self._run.model_dir, path), "rb") as file:
                arrays = np.load(io.BytesIO(file.read()))
            lists: dict[str, list[np.ndarray]] = {}
            for key in arrays.files:  # In the order in which they were written.
                owner, attribute, _ = key.split("/")
                if owner == name:
                    lists.setdefault(attribute, []).append(arrays[key])
            vars(callback).update(lists)
        if isinstance(callback, _callbacks.CSVLogger) and not callback.append:
            for epoch, logs in zip(self.epoch, self._rows(), strict=True):
                callback.on_epoch_end(epoch, logs)

    def _begin_epoch(self, run: RunContext) -> None:
        epoch = self._epoch_at(run.step)
        if epoch != self._begun and epoch < self._epochs:
            self._begun = epoch
            self._call("on_epoch_begin", epoch, {})
            if self._stopped is None:
                self._begin_batch(self._freqs)

    def _end_of_batch(self, freq: int, step: int) -> int:
        """Returns the next step at which a callback is called that counts `freq` steps.

        That is a multiple of `freq`, or of an execution within the epoch, or the epoch's end.
        """
        epoch = step - step % self.every_steps
        start, size = (0, freq) if self._execution == 1 else (epoch, self._execution)
        return min(step - (step - start) % size + size, epoch + self.every_steps)

    def _begin_batch(self, names: Collection[str]) -> None:
        step = self._run.step
        for name in names:
            if name in self._active and self._execution == 1:
                end = self._end_of_batch(self._freqs[name], step)
                private.set_batch_number(self._active[name], end)
        batch = step % self.every_steps
        self._call("on_train_batch_begin", batch, among=names, stops=False, logs={})

    def _take_results(self, run: RunContext) -> None:
        """Takes the results of an epoch, which a callback may have stopped before its end."""
        self._pending = _logs(run.report)
        if not self._validates(self._epoch_at(run.step - 1) + 1):
            self._end_epoch(run, {})

    def _end_epoch(self, run: RunContext, validation: Mapping[str, Any]) -> None:
        epoch = self._epoch_at(run.step - 1)
        logs, self._pending = {**(self._pending or {}), **validation}, None
        self._estimator.state.synchronize()
        self._call("on_epoch_end", epoch, logs)  # Some add the learning rate.
        for name, value in logs.items():
            self.history.setdefault(name, []).append(_plain(value))
        if run.is_chief:
            line = f"epoch {epoch + 1}/{self._epochs}{as_text(logs)}"
            show_line(line, prints=self._estimator.config.progress)
        if self._stopped is None:
            self._begin_epoch(run)

    def begin_validation(self) -> None:
        """Calls `on_test_begin`."""
        self._start()
        if self._pending is not None:  # Else a last evaluation, which Keras does not make.
            self._call("on_test_begin", {})

    def next_test_batch(self, step: int) -> int | None:
        """Returns the next step of a validation at which a callback is called; None for never."""
        return step - step % self._execution + self._execution if self.tests_batches else None

    def call_test_batch(self, step: int, report: Report) -> None:
        """Calls `on_test_batch_*` for the steps of a validation after `step`."""
        if self._pending is not None:
            self._call("on_test_batch_begin", step, logs={})
            self._call("on_test_batch_end", step + self._execution - 1, logs=_logs(report))

    def end_validation(self, report: Report) -> None:
        """Calls `on_test_end` with the results."""
        if self._pending is not None:
            self._call("on_test_end", _logs(report))

    def _call_copy(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the copy of the model, which Keras can run, with the present values."""
        # Several processes have synchronized before the callbacks, of which one may call this.
        if self._estimator.state.replicas.num_processes == 1:
            self._estimator.state.synchronize()
        return getattr(self._copy(), method)(*args, **kwargs)

    def _epoch_at(self, step: int) -> int:
        """Returns the number of epochs that have ended, those before `initial_epoch` included."""
        return self._first + step // self.every_steps

    def _validates(self, number: int) -> bool:
        return self._freq is not None and number % self._freq == 0

    def _rows(self) -> list[dict[str, Any]]:
        """Returns the logs of each epoch."""
        rows = []
        counts = dict.fromkeys(self.history, 0)
        for epoch in self.epoch:
            skips = not self._validates(epoch + 1)
            names = [n for n in self.history if not (skips and n.startswith("val_"))]
            found = [name for name in names if counts[name] < len(self.history[name])]
            rows.append({name: self.history[name][counts[name]] for name in found})
            counts.update({name: counts[name] + 1 for name in found})
        return rows

    def _call(
        self,
        method: str,
        *args: Any,
        among: Collection[str] | None = None,
        stops: bool = True,
        **kwargs: Any,
    ) -> None:
        """Calls a method of the callbacks, of some by name; stops training if one asks for it."""
        for name, each in self._active.items():
            if among is not None and name not in among:
                continue
            self._call_one(each, method, *args, **kwargs)
            if stops and self._model.stop_training and self._stopped is None:
                self._stopped = f"{name} set model.stop_training"
                self._run.request_stop(self._stopped)

    def _call_one(self, callback: Any, method: str, *args: Any, **kwargs: Any) -> None:
        with annotate_method_errors("callback", callback, method, step=self._run.step):
            getattr(callback, method)(*args, **kwargs)

    def _changed_rate(self) -> float | None:
        """Returns the learning rate that callbacks have set, which no other state has."""
        rate, was_set = _rate(self._model), self._saved.get("learning_rate") is not None
        return rate if was_set or rate != self._first_rate else None

    def _attributes(self, name: str) -> dict[str, Any]:
        """Returns the attributes of a callback that have changed since its beginning."""
        before, kept = self._fresh[name], self._saved.get("attributes", {}).get(name, {})
        now = _simple(self._active[name])
        return {k: _plain(v) for k, v in now.items() if k in kept or before.get(k, ()) != v}

    def _write_arrays(self) -> str | None:
        """Writes the arrays of callbacks if they have changed; returns the path in model_dir."""
        found = {
            f"{name}/{attribute}/{index}": array
            for name, each in self._active.items()
            for attribute, value in vars(each).items()
            if _is_arrays(value)
            for index, array in enumerate(value)
        }
        if not found:
            return None
        before = self._arrays
        if found.keys() == before.keys() and all(found[k] is before[k] for k in found):
            return self._path
        self._arrays, self._path = found, f"callbacks/step-{self._run.step}.npz"
        path, content = os.path.join(self._run.model_dir, self._path), io.BytesIO()
        np.savez(content, **found)
        keeps = self._estimator.config.keep_checkpoint_max
        storage_watchdog.call(path, _write_npz, path, content.getvalue(), keeps)
        return self._path


def _write_npz(path: str, content: bytes, keeps: int | None) -> None:
    """Writes a file; deletes old files, to which no checkpoint refers any longer."""
    folder = os.path.dirname(path)
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(f"{path}.tmp", "wb") as file:
        file.write(content)
    tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)
    steps = sorted(int(name[5:-4]) for name in tf.io.gfile.listdir(folder) if name.endswith(".npz"))
    for step in steps[: -keeps - 1] if keeps else ():
        tf.io.gfile.remove(os.path.join(folder, f"step-{step}.npz"))


class BatchCallbacks(Hook):
    """Ends compiled calls at the steps at which `KerasCallbacks.after_loop` ends a batch."""

    def __init__(self, callbacks: KerasCallbacks) -> None:
        """Takes the hook of the training."""
        self._callbacks = callbacks

    def next_step(self, step: int) -> int | None:
        """Returns the end of the next batch for which a callback is called."""
        return self._callbacks.next_batch(step)


class ValidationCallbacks(Hook):
    """Calls the callbacks at the begin and end of a validation, and of its batches."""

    def __init__(self, callbacks: KerasCallbacks) -> None:
        """Takes the hook of the training."""
        self._callbacks, self._step = callbacks, 0

    def begin(self, run: RunContext) -> None:
        """Calls `on_test_begin`."""
        self._step = 0
        self._callbacks.begin_validation()

    def next_step(self, step: int) -> int | None:
        """Returns the end of the next batch for which a callback is called."""
        return self._callbacks.next_test_batch(step)

    def after_loop(self, run: RunContext) -> None:
        """Calls `on_test_batch_*`, with means over the steps so far, if the batch has ended."""
        if self._callbacks.tests_batches and run.report.num_steps == self.next_step(self._step):
            self._end_batch(run.report)

    def end(self, run: RunContext) -> None:
        """Calls `on_test_batch_*` for the rest, and `on_test_end` with the results."""
        if self._callbacks.tests_batches and run.report.num_steps > self._step:
            self._end_batch(run.report)
        self._callbacks.end_validation(run.report)

    def _end_batch(self, report: Report) -> None:
        self._callbacks.call_test_batch(self._step, report)
        self._step = report.num_steps


def _logs(report: Report) -> dict[str, Any]:
    """Returns the loss and the metrics of a report by Keras' names."""
    # Scalars are results of an own train_step, of its last batch as in Keras.
    scalars = {k: v for k, v in report.scalars.items() if not k.startswith("learning_rate")}
    metrics = {name: _plain(value) for name, value in {**report.metrics, **scalars}.items()}
    return {"loss": float(report.loss), **metrics}


def _plain(value: Any) -> Any:
    """Returns a number, text or array as JSON."""
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()


def _rate(model: keras.Model) -> float | None:
    """Returns the learning rate; None for a schedule."""
    rate = model.optimizer.learning_rate
    return float(keras.ops.convert_to_numpy(rate)) if hasattr(rate, "assign") else None


def _simple(callback: Any) -> dict[str, Any]:
    """Returns the attributes that are numbers or texts."""
    # Keras changes the sign of min_delta when it chooses the direction, again in each training.
    found = {name: v for name, v in vars(callback).items() if name != "min_delta"}
    return {name: v for name, v in found.items() if isinstance(v, _SIMPLE)}


def _is_arrays(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and bool(value)
    return is_list and all(isinstance(each, np.ndarray) for each in value)


def _choose_mode(callback: Any, metrics: Any) -> None:
    """Sets the direction of a monitored metric; Keras takes it from metrics that its fit makes."""
    name = str(getattr(callback, "monitor", "")).removeprefix("val_")
    if getattr(callback, "mode", None) != "auto" or name == "loss":
        return
    given = [each for each in tf.nest.flatten(metrics) if getattr(each, "name", None) == name]
    is_up = _is_up(type(given[0])) if given else None
    with contextlib.suppress(UserValueError):  # Keras has an error with the remedy.
        callback.mode = "max" if higher_is_better(name, is_up, "mode") else "min"


def _is_up(metric: type) -> bool | None:
    """Returns whether larger values of a metric of Keras are better; None for unknown."""
    bases = [kind.__name__ for kind in metric.__mro__ if kind.__module__.startswith("keras.")]
    return next((n.endswith(_HIGHER) for n in bases if n.endswith((*_HIGHER, *_LOWER))), None)


def _numbered(callbacks: Sequence[Any]) -> list[str]:
    """Returns names of callbacks, each once."""
    names = [type(each).__name__ for each in callbacks]
    return [f"{name}_{names[:i].count(name)}" for i, name in enumerate(names)]
