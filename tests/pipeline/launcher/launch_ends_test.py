"""How a launched cluster ends: failures, restarts, signals; with real processes."""

import os
import re
import signal
import time

import pytest

from pipeline.launcher import processes
from tests import patience
from tests.launched import SLEEP


def test_the_first_failure_ends_all(start):
    program = """
if task == "worker 1":
    wait_for("worker 0")
    sys.stderr.write("reason of worker 1")
    sys.exit(3)
"""
    launched = start(program + SLEEP, "--workers=2", "--evaluator")
    code, _, err = launched.finish()
    assert code == 3
    said = err.splitlines()
    reason = said.index("[worker 1] reason of worker 1")
    assert said[reason + 1].startswith(
        "[launch] worker 1 exited with 3; SIGTERM to worker 0, evaluator 0, SIGKILL 30"
    )


FAILS_AT_FIRST = """
import pathlib

def starts_of(name):
    path = pathlib.Path(os.environ["FAKE_DIR"]) / f"starts of {name}"
    return path, len(path.read_text().splitlines()) if path.exists() else 0

path, before = starts_of(task)
with open(path, "a") as stream:
    stream.write(os.environ["TF_CONFIG"] + "\\n")
if before < FAILURES and task == "worker 1":
    while starts_of("worker 0")[1] <= before:
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
if before < FAILURES:
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("failures", "restarts", "code", "starts"),
    [(2, 2, 0, 3), (2, 1, 128 + 9, 2), (1, 0, 128 + 9, 1)],
    ids=["enough", "too_few", "none"],
)
def test_restarts(start, tmp_path, failures, restarts, code, starts):
    program = f"import os, time\nFAILURES = {failures}\n{FAILS_AT_FIRST}"
    launched = start(program, "--workers=2", f"--max_restarts={restarts}")
    ended, _, err = launched.finish()
    assert ended == code
    said = [line for line in err.splitlines() if "; restart " in line]
    assert said == [
        f"[launch] worker 1 was killed by SIGKILL; restart {n} of {restarts}, from the "
        "last checkpoint"
        for n in range(1, starts)
    ]
    clusters = (tmp_path / "starts of worker 0").read_text().splitlines()
    # On ports of their own.
    assert len(set(clusters)) == starts


@pytest.mark.parametrize("ends", ["sys.exit(2)", "signal"])
def test_what_another_start_would_not_mend(start, ends):
    launched = start(SLEEP if ends == "signal" else ends, "--max_restarts=3")
    if ends == "signal":
        launched.wait_for("worker 0")
        launched.process.send_signal(signal.SIGTERM)
    code, _, err = launched.finish()
    assert code != 0
    assert "; restart " not in err


def test_a_killed_task_is_named_although_its_peers_end_first(start):
    program = """
if task == "worker 0":
    wait_for("worker 1")
    sys.exit(75)
if task == "worker 1":
    started(task)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    code, _, err = start(program + SLEEP, "--workers=3").finish()
    assert code == 128 + signal.SIGKILL
    assert "[launch] worker 1 was killed by SIGKILL; SIGTERM to worker 2" in err


def test_the_task_that_lost_a_peer_is_blamed_last():
    def ends(*codes):
        return [
            processes.End(f"worker {i}", code, time=float(i))
            for i, code in enumerate(codes)
        ]

    def blamed(*codes, now):
        failure = processes.first_failure(ends(*codes), now=now)
        return None if failure is None else (str(failure), failure.code)

    assert blamed(0, 0, now=99) is None
    assert blamed(0, 4, 5, now=2) == ("worker 1 exited with 4", 4)
    assert blamed(75, 75, now=2) is None
    assert blamed(75, -9, now=2) == ("worker 1 was killed by SIGKILL", 137)
    assert blamed(75, -40, now=2) == ("worker 1 was killed by 40", 168)
    lost = ("worker 1 exited with 75 (to be started again)", 75)
    assert blamed(0, 75, now=5.9) is None
    assert blamed(0, 75, now=6) == lost


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_every_task_once(start, signum):
    program = """
got = []
for s in (signal.SIGTERM, signal.SIGINT):
    signal.signal(s, lambda s, _: got.append(signal.Signals(s).name))
started(task)
while not got:
    time.sleep(0.01)
time.sleep(0.3)
print(*got)
sys.exit(42)
"""
    launched = start(program, "--ps=1")
    launched.wait_for("chief 0", "worker 0", "ps 0")
    # The terminal's way: to every process of the foreground group.
    os.killpg(launched.process.pid, signum)
    code, out, err = launched.finish()
    assert code == 42
    name = "SIGTERM" if signum == signal.SIGHUP else signum.name
    tasks = ("chief 0", "worker 0", "ps 0")
    assert sorted(out.splitlines()) == sorted(f"[{task}] {name}" for task in tasks)
    assert f"[launch] got {signum.name}; {name} to chief 0, worker 0, ps 0" in err


def test_nohup_holds_for_the_launcher_and_its_tasks(start, monkeypatch):
    monkeypatch.setenv("ON_SIGHUP", "SIG_IGN")
    launched = start("started(task)\nwait_for('hung up')\n", "--workers=2")
    launched.wait_for("worker 0", "worker 1")
    os.killpg(launched.process.pid, signal.SIGHUP)
    (launched.folder / "hung up").touch()
    assert launched.finish()[0] == 0


def test_tasks_that_save_and_end_well_after_a_signal_are_no_failure(start):
    program = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + SLEEP
    launched = start(program, "--workers=2")
    launched.wait_for("worker 0", "worker 1")
    launched.process.terminate()
    assert launched.finish()[0] == 0


STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
STUBBORN += "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
# A process of the task's own, as stubborn, that holds its pipes open.
GRANDCHILD = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"


def test_what_does_not_end_is_killed_after_the_grace_period(start):
    launched = start(STUBBORN + GRANDCHILD + SLEEP, "--workers=2", "--grace_secs=0.5")
    launched.wait_for("worker 0", "worker 1")
    launched.process.terminate()
    code, _, err = launched.finish()
    assert code == 128 + signal.SIGTERM
    assert "worker 0, worker 1 did not end within 0.5 s: SIGKILL" in err


def test_a_failure_keeps_its_code_where_others_are_killed(start):
    program = "if task == 'worker 0':\n    wait_for('worker 1')\n    sys.exit(3)\n"
    launched = start(program + STUBBORN + SLEEP, "--workers=2", "--grace_secs=0.2")
    code, _, err = launched.finish()
    assert code == 3
    assert "worker 1 did not end within 0.2 s: SIGKILL" in err


def test_ctrl_c_again_kills_at_once(start):
    launched = start(STUBBORN + SLEEP, "--workers=2")
    launched.wait_for("worker 0", "worker 1")
    launched.process.send_signal(signal.SIGINT)
    assert any("got SIGINT" in line for line in launched.process.stderr)
    launched.process.send_signal(signal.SIGINT)
    code, _, err = launched.finish()
    assert code == 128 + signal.SIGINT
    assert "SIGINT again: SIGKILL" in err


def test_a_killed_launcher_leaves_nobody(start):
    launched = start(STUBBORN + GRANDCHILD + SLEEP, "--ps=1", "--evaluator")
    launched.wait_for("chief 0", "worker 0", "ps 0", "evaluator 0")
    # The launcher, its guard, four tasks, and what each of these started.
    assert len(launched.left()) == 10
    launched.process.kill()
    is_over = patience.deadline(5)
    while launched.left() and not is_over():
        time.sleep(0.05)
    assert not launched.left()


def test_who_does_not_follow_the_chief_is_named(start):
    program = "if task in ('chief 0', 'worker 0', 'ps 0'):\n    sys.exit(0)\n"
    launched = start(program + SLEEP, "--ps=1", "--evaluator", "--exit_secs=0.5")
    code, _, err = launched.finish()
    assert code == 1
    said = r"\[launch\] .*evaluator 0 did not end within 0.5 s of chief 0; --exit_secs"
    assert re.search(said, err)


def test_those_who_follow_the_chief_have_time(start):
    program = "if task != 'chief 0':\n    time.sleep(0.5)\nsys.stdout.write('done')\n"
    # Holds the pipe, whose end is then not seen.
    program += "if task == 'evaluator 0':\n    " + GRANDCHILD
    code, out, err = start(program, "--ps=1", "--evaluator").finish()
    assert code == 0
    tasks = ("chief 0", "worker 0", "ps 0", "evaluator 0")
    assert sorted(out.splitlines()) == sorted(f"[{task}] done" for task in tasks)
    assert "SIG" not in err


def test_a_worker_that_ends_before_the_chief_ends_nobody(start):
    program = """
started(task)
if task == "chief 0":
    wait_for("worker 0")
    wait_for("ps 0")
    time.sleep(1)
"""
    code, _, _ = start(program, "--ps=1", "--exit_secs=0.3").finish()
    assert code == 0


def test_a_reader_that_goes_away_ends_the_tasks(start):
    program = "while True:\n    print('line')\n    time.sleep(0.01)\n"
    launched = start(program, "--workers=2")
    assert "line" in launched.process.stdout.readline()
    launched.process.stdout.close()
    launched.process.stdout = None
    code, _, err = launched.finish()
    assert code == 128 + signal.SIGPIPE
    assert "nobody reads the output; SIGTERM to worker 0, worker 1" in err
    assert "Traceback" not in err
