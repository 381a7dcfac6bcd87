"""Trainings that are killed, in processes of their own.

    processes = Processes()
    code = processes.start("one", folder).wait()
    code = processes.start("one", folder, Fault("index", step=4)).wait()  # -9

Each is forked, see `tests.forked`, and is killed for good as any other process.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
import threading
import time

import tensorflow as tf
from absl import logging

import pipeline as ge
from pipeline import PreemptionHook, launch
from pipeline.checkpoints import checkpoint
from pipeline.driver import estimator
from pipeline.feed import position
from pipeline.model_dir import atomic_file
from pipeline.roles import train_and_evaluate
from pipeline.strategy.replicas import Replicas
from tests import fakes, forked, patience
from tests.killed_trainings import CASES, NUM_STEPS, Noted, input_fn

AGAIN = 75
SAVE_STEPS = 3
# So that a kill from outside comes somewhere on the way.
SLOW_STEP_SECS = 0.02


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to a process.

    Attributes:
      kind: where it kills itself: 'step' after a step, 'graph' within one, 'position',
        'data', 'index' and 'commit' inside of a save, 'saved' after it; 'outside': it
        is killed from there, while it steps slowly.
      step: the first one at which it may; 'outside': where it waits for its end.
    """

    kind: str
    step: int = 0


# The process.


def train(case, folder, task, tf_config, fault):
    """Trains a case in this process, to its end or the fault's."""
    forked.settle()
    forked.compile_fast()
    begun, log = folder / f"begun-{task}", folder / f"log-{task}.txt"
    stream = log.open("a")
    for number in (1, 2):
        os.dup2(stream.fileno(), number)
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    if tf_config:
        os.environ["TF_CONFIG"] = tf_config
    tf.config.threading.set_intra_op_parallelism_threads(1)
    chosen = CASES[case]
    config = {
        "model_dir": str(folder / "model"),
        "tf_random_seed": 1,
        "save_checkpoints_steps": SAVE_STEPS,
        "keep_checkpoint_max": 2,
        "save_summary_steps": None,
        "log_step_count_steps": 10,
    }
    made = estimator.Estimator(
        chosen.model_fn,
        modules=chosen.modules,
        config=ge.RunConfig(**{**config, **chosen.config}),
        params={"in_graph": _in_graph(fault)},
    )
    replicas = Replicas(process=task, num_processes=chosen.num_workers)
    killer = _Killer(fault, begun, replicas)
    try:
        spec = ge.TrainSpec(
            input_fn,
            max_steps=NUM_STEPS,
            hooks=[PreemptionHook(), Noted(), killer],
            saving_listeners=[killer],
        )
        train_and_evaluate.train(made, spec)
    except (ge.PreemptedError, ge.PeerLostError) as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(AGAIN)
    # As the end of a process that was not forked, without waiting for TensorFlow's.
    os._exit(0)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _in_graph(fault):
    """Of the step: kills this process while the graph of that step runs."""
    if fault is None or fault.kind != "graph":
        return lambda step: None

    def check(step):
        if step >= fault.step:
            _kill()
        return step

    return lambda step: tf.numpy_function(check, [step], tf.int64)


class _Killer(ge.Hook, ge.SavingListener):
    """Kills this process where the fault says."""

    def __init__(self, fault, begun, replicas):
        self._fault = fault
        self._begun = begun
        self._replicas = replicas

    def next_step(self, step):
        if self._fault is None:
            return None
        if self._fault.kind == "step":
            return max(self._fault.step, step + 1)
        return step + 1 if self._fault.kind == "outside" else None

    def after_step(self, run):
        if self._fault.kind == "step":
            _kill()
        self._begun.touch()
        time.sleep(SLOW_STEP_SECS if run.step < self._fault.step else 60)

    def before_save(self, run):
        if self._fault is None or run.step < self._fault.step:
            return
        path = checkpoint.path_of(run.model_dir, run.step)
        if self._fault.kind == "position":
            _stop_at(position.position_path(path, self._replicas))
        elif self._fault.kind == "index":
            _stop_at(path)
        elif self._fault.kind == "commit":
            _kill_at_commit(run.model_dir)
        elif self._fault.kind == "data":
            threading.Thread(target=_kill_while_written, args=[run.model_dir]).start()

    def after_save(self, run):
        saved = self._fault is not None and self._fault.kind == "saved"
        if saved and run.step >= self._fault.step:
            _kill()


def _stop_at(path):
    """Kills this process when a checkpoint's data are written, and its index not."""
    _stop_in(f"{path}.index", lambda: _exists(path, "data-00000-of-00001"))


def _kill_at_commit(model_dir):
    """Kills this process when a checkpoint is written, and not yet the latest.

    It may be the one before, which an asynchronous save is still about to commit.
    """
    write = atomic_file.write

    def killing(path, text):
        there = max(fakes.checkpoint_steps(model_dir))
        committed = map(checkpoint.step_of, checkpoint.committed(model_dir))
        if os.path.basename(path) == "checkpoint" and there > max(
            committed, default=-1
        ):
            _kill()
        write(path, text)

    atomic_file.write = killing


def _exists(path, end):
    return os.path.exists(f"{path}.{end}")


def _stop_in(path, reached):
    """Kills this process when `reached()`, with nothing written to `path` as yet.

    Who opens a pipe for writing waits there for somebody to read it.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.mkfifo(path)

    def wait():
        while not reached():
            time.sleep(0.001)
        time.sleep(0.01)
        os.unlink(path)
        _kill()

    threading.Thread(target=wait).start()


def _kill_while_written(model_dir):
    """Kills this process when a part of a checkpoint's data is written."""
    while True:
        for file in pathlib.Path(model_dir).glob("model.ckpt-*_temp/*.data-*"):
            with contextlib.suppress(FileNotFoundError):
                if file.stat().st_size:
                    _kill()


# The test's side.


@dataclasses.dataclass
class Attempt:
    """The processes of one start of a training.

    Attributes:
      folder: with its logs and, in `model`, its model_dir.
      processes: one a worker.
    """

    folder: pathlib.Path
    processes: list

    def wait_for_begin(self, timeout=60.0):
        """Returns once the one that is to be killed from outside trains."""
        is_over = patience.deadline(timeout)
        while not any(self.folder.glob("begun-*")):
            ended = [p.exitcode for p in self.processes if p.exitcode is not None]
            assert not ended, f"ended with {ended}: {self.log}"
            assert not is_over(), f"did not begin: {self.log}"
            time.sleep(0.002)

    def wait(self, timeout=90.0):
        """How each ended; those that do not are killed."""
        is_over = patience.deadline(timeout)
        for process in self.processes:
            while process.is_alive() and not is_over():
                process.join(1.0)
        stuck = [i for i, p in enumerate(self.processes) if p.is_alive()]
        self.end()
        assert not stuck, f"{stuck} did not end in {timeout} s: {self.log}"
        return [process.exitcode for process in self.processes]

    def end(self):
        """Kills those that still run."""
        for process in self.processes:
            process.kill()
            process.join()

    @property
    def log(self):
        """The ends of what they wrote."""
        files = sorted(self.folder.glob("log-*.txt"))
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in files)


class Processes:
    """Starts processes fast, each by itself."""

    @contextlib.contextmanager
    def attempt(self, case, folder, faults=()):
        """One start of a case.

        Args:
          case: a name in `CASES`.
          folder: the same for each start of one training.
          faults: of each process, or None.
        """
        size = CASES[case].num_workers
        faults = faults or [None] * size
        jobs = launch.addresses(workers=size, ps=0, evaluator=False)
        started = []
        for index, fault in enumerate(faults):
            config = launch.tf_config(jobs, job="worker", index=index)
            with contextlib.suppress(FileNotFoundError):
                (folder / f"begun-{index}").unlink()
            process = forked.SERVER.Process(
                target=train,
                args=(case, folder, index, config if size > 1 else "", fault),
            )
            process.start()
            started.append(process)
        attempt = Attempt(folder, started)
        try:
            yield attempt
        finally:
            attempt.end()
