"""One training a model_dir, whoever else wants it, and whoever died there."""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import pipeline as ge
from pipeline import ClaimedError
from pipeline.model_dir import atomic_file, claim, end_marker
from pipeline.roles import train_and_evaluate
from tests import clusters, fakes, forked, patience

ROOT = pathlib.Path(__file__).parent.parent.parent.parent
SCRIPT = ROOT / "tests" / "scripts" / "claims.py"


@contextlib.contextmanager
def process(*arguments):
    """`tests/scripts/claims.py` with these arguments, killed in the end."""
    started = subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


def written(model_dir, **changes):
    """A claim as this process would make it, but for some fields."""
    with claim.held(str(model_dir)):
        own = claim.read(str(model_dir))
    other = dataclasses.replace(own, token="other", **changes)
    rewrite(model_dir, other)
    return other


def rewrite(model_dir, other):
    text = json.dumps(dataclasses.asdict(other))
    part = model_dir / "part"
    part.write_text(text)
    part.rename(model_dir / claim.FILE)


def elsewhere(model_dir, **changes):
    return written(model_dir, host="elsewhere", machine="other", **changes)


def test_it_says_who_and_since_when_and_goes_in_the_end(tmp_path):
    before = time.time()
    with claim.held(str(tmp_path)):
        found = json.loads((tmp_path / claim.FILE).read_text())
        assert (found["host"], found["pid"]) == (socket.gethostname(), os.getpid())
        assert before <= found["since"] <= found["renewed_at"] <= time.time()
    assert not list(tmp_path.iterdir())


def test_it_goes_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), claim.held(str(tmp_path / "new")):
        raise KeyboardInterrupt
    assert claim.read(str(tmp_path / "new")) is None


def test_it_is_renewed(tmp_path):
    with claim.held(str(tmp_path), renew_secs=0.05):
        first = claim.read(str(tmp_path))
        is_over = patience.deadline(10)
        while claim.read(str(tmp_path)).renewed_at == first.renewed_at:
            assert not is_over()
            time.sleep(0.02)
        assert claim.read(str(tmp_path)).since == first.since


def test_two_at_once_in_one_process_and_one_after_the_other(tmp_path):
    for _ in range(2):
        with claim.held(str(tmp_path)):
            with pytest.raises(ClaimedError) as error, claim.held(str(tmp_path)):
                pass
            assert (
                f"model_dir {tmp_path} is in use: this process {os.getpid()} on "
            ) in str(error.value)
            assert "give each Estimator a model_dir of its own" in str(error.value)
            assert claim.read(str(tmp_path)) is not None


def test_another_process_is_named_and_once_killed_replaced(tmp_path, caplog):
    with process("hold", tmp_path) as other:
        assert other.stdout.readline() == "held\n"
        since = claim.read(str(tmp_path)).since
        with pytest.raises(ClaimedError) as error, claim.held(str(tmp_path)):
            pass
        date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
        assert (
            f"model_dir {tmp_path} is in use: process {other.pid} on "
            f"{socket.gethostname()} (since {date}) trains there"
        ) in str(error.value)
        assert f"delete {tmp_path}/{claim.FILE}" in str(error.value)
        # A zombie until its parent, this process, asks for it: dead all the same.
        other.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        began = time.monotonic()
        with caplog.at_level("WARNING", logger="absl"), claim.held(str(tmp_path)):
            assert claim.read(str(tmp_path)).pid == os.getpid()
        assert time.monotonic() - began < claim.EXPIRE_SECS / 2
    assert f"process {other.pid} on " in caplog.text
    assert "died: taking over" in caplog.text


def test_a_pid_that_came_again_is_another_process(tmp_path):
    written(tmp_path, pid=os.getppid(), started="1")
    with claim.held(str(tmp_path)):
        assert claim.read(str(tmp_path)).pid == os.getpid()


def test_another_machine_that_renews_is_alive(tmp_path):
    other, seen = elsewhere(tmp_path), threading.Event()

    def renew():
        # Again and again, as nobody knows when the first look is.
        for number in itertools.count(1):
            if seen.wait(0.2):
                return
            rewrite(tmp_path, dataclasses.replace(other, renewed_at=float(number)))

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(ClaimedError, match="process .* on elsewhere "):
            claim.held(str(tmp_path), expire_secs=30).__enter__()
    finally:
        seen.set()
        renewing.join()
    assert claim.read(str(tmp_path)).token == "other"


def test_another_machine_that_does_not_renew_is_dead_at_last(tmp_path):
    elsewhere(tmp_path)
    began = time.monotonic()
    with claim.held(str(tmp_path), expire_secs=1.5):
        assert claim.read(str(tmp_path)).pid == os.getpid()
    assert time.monotonic() - began > 1


def test_the_claim_of_long_ago_is_not_waited_for(tmp_path):
    elsewhere(tmp_path)
    past = time.time() - 2 * claim.EXPIRE_SECS
    os.utime(tmp_path / claim.FILE, (past, past))
    began = time.monotonic()
    with claim.held(str(tmp_path)):
        pass
    assert time.monotonic() - began < claim.EXPIRE_SECS / 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [b"", b"{", b'{"pid": 1}', b"[]", b"\xff\xfe"])
def test_a_damaged_one_does_not_count(text, tmp_path):
    (tmp_path / claim.FILE).write_bytes(text)
    with claim.held(str(tmp_path)):
        assert claim.read(str(tmp_path)).pid == os.getpid()


@pytest.mark.parametrize(
    "changes",
    [
        *({"pid": pid} for pid in ("7", None, True, 0, -1, 2**40, 1.5)),
        *({"since": since} for since in ("now", None, 1e30, -1.0, float("nan"))),
        *({name: 7} for name in ("host", "machine", "started", "token")),
    ],
)
def test_one_with_values_of_another_kind_does_not_count(changes, tmp_path, caplog):
    own = dataclasses.asdict(claim._own())
    (tmp_path / claim.FILE).write_text(json.dumps({**own, **changes}))
    with claim.held(str(tmp_path)):
        assert claim.read(str(tmp_path)).pid == os.getpid()
    assert f"{claim.FILE} is damaged, and does not count" in caplog.text


def test_one_that_was_taken_over_is_neither_renewed_nor_removed(tmp_path):
    with claim.held(str(tmp_path), renew_secs=0.02) as check:
        check()
        own = claim.read(str(tmp_path))
        # A renewal may be under way: it is as if it came before.
        while claim.read(str(tmp_path)).host != "elsewhere":
            rewrite(tmp_path, dataclasses.replace(own, token="other", host="elsewhere"))
            time.sleep(0.1)
        with pytest.raises(ClaimedError, match="elsewhere .* took over"):
            check()
    assert claim.read(str(tmp_path)).host == "elsewhere"


# At the same moment.


def winners(model_dir, count=8):
    """How many of so many threads get it, while who got it keeps it."""
    together, won, over = threading.Barrier(count), [], threading.Barrier(count)

    def attempt():
        with contextlib.ExitStack() as stack:
            together.wait(30)
            with contextlib.suppress(ClaimedError):
                won.append(stack.enter_context(claim.held(str(model_dir))))
            over.wait(30)

    threads = [threading.Thread(target=attempt) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(won)


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_one_gets_it(stale, tmp_path):
    for number in range(10):
        model_dir = tmp_path / str(number)
        model_dir.mkdir()
        if stale:
            written(model_dir, pid=os.getppid(), started="1")
        assert winners(model_dir) == 1


def test_of_many_one_gets_it_where_the_disk_has_no_locks(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError("Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(claim, "_SETTLE_SECS", 0.5)
    assert winners(tmp_path, count=3) == 1


def test_of_two_processes_one_gets_it(tmp_path):
    rounds, tasks = 40, []
    with contextlib.ExitStack() as stack:
        for name in ("first", "second"):
            log = tmp_path / name
            race = [str(SCRIPT), "race", str(tmp_path), str(rounds)]
            process = forked.Program(race, dict(os.environ), log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            tasks.append(clusters.Task(name, process, log, log))
        for task in tasks:
            task.wait_for("ready\n")
        atomic_file.write(str(tmp_path / "start"), str(time.time() + 0.1))
        for task in tasks:
            task.wait_for("]\n")
    won = [re.search(r"^won (.+)$", task.text, re.M)[1] for task in tasks]
    assert sorted(sum(map(json.loads, won), [])) == list(range(rounds))


# In training.

X, Y = fakes.classification_data(rows=16)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=16)


class Meanwhile(ge.Hook):
    """Calls something at step 2, and keeps what came of it."""

    every_steps = 2

    def __init__(self, call):
        self._call = call
        self.result = None

    def after_step(self, run):
        if run.step == 2:
            try:
                self.result = self._call()
            except ClaimedError as error:
                self.result = error


def test_two_estimators_train_one_after_the_other_only(tmp_path):
    other = fakes.make_estimator(tmp_path)
    spec = ge.TrainSpec(TRAIN, max_steps=9)
    hook = Meanwhile(lambda: train_and_evaluate.train(other, spec))
    first = fakes.make_estimator(tmp_path)
    first.train(TRAIN, max_steps=4, hooks=[hook])
    assert "is in use: this process" in str(hook.result)
    # The other one's end would end who waits for this one's.
    assert end_marker.read(str(tmp_path)) is None
    assert fakes.checkpoint_steps(tmp_path) == [0, 4]
    train_and_evaluate.train(other, spec)
    first.train(TRAIN, steps=1)
    assert fakes.checkpoint_steps(tmp_path) == [0, 4, 9, 10]
    assert claim.read(str(tmp_path)) is None


def test_what_only_reads_needs_no_claim(tmp_path):
    reader = fakes.make_estimator(tmp_path)
    hook = Meanwhile(lambda: reader.evaluate(EVAL)["global_step"])
    fakes.make_estimator(tmp_path).train(TRAIN, max_steps=4, hooks=[hook])
    assert hook.result == 0


def test_training_that_lost_its_claim_saves_nothing_more(tmp_path):
    def lose():
        own = claim.read(str(tmp_path))
        rewrite(tmp_path, dataclasses.replace(own, token="other", host="elsewhere"))

    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=3)
    with pytest.raises(ClaimedError, match="elsewhere .* took over"):
        estimator.train(TRAIN, max_steps=6, hooks=[Meanwhile(lose)])
    assert fakes.checkpoint_steps(tmp_path) == [0]
