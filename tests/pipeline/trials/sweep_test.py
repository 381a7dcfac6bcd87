"""Sweeps as a user runs them: trials as processes, their ends, kills, results."""

import re
import shlex
import signal
import subprocess

import pytest

from pipeline import sweep
from tests import patience
from tests.sweeps import CURVE


def test_the_best_trial_is_told_with_its_command(sweeps, capfd):
    made = sweeps()
    assert made.run("--trials=4") == 0
    out, err = capfd.readouterr()
    results = {row[0]: float(row[2]) for row in made.table()}
    assert len(results) == 4
    best = max(results, key=results.get)
    assert re.search(rf"^trial +state +accuracy +step +X\n{best} +done", out)
    command = shlex.split(out.splitlines()[-1])
    (value,) = [row[4] for row in made.table() if row[0] == best]
    assert command[-2:] == [
        f"--gin_param=X={value}",
        f"--model_dir={made.sweep_dir}/trial-000{best}",
    ]
    assert results[best] == 3 * float(value)
    assert f"best {results[best]:.6g}, trial {best} | 4 of 4 ended" in err


def test_more_trials_are_added_to_those_that_are_there(sweeps):
    made = sweeps()
    made.run("--trials=2")
    before = made.table()
    assert made.run("--trials=3") == 0
    assert made.table()[:2] == before
    assert len(made.table()) == 3


def test_what_is_suggested_depends_on_the_seed_alone(sweeps):
    made = sweeps()
    made.run("--trials=3")
    before = made.table()
    made.sweep_dir = made.folder / "again"
    made.run("--trials=1")
    made.run("--trials=3")
    assert made.table() == before
    made.sweep_dir = made.folder / "other"
    made.run("--trials=3", "--seed=1")
    assert made.table() != before


def test_several_at_a_time_each_in_a_slot_of_its_own(sweeps):
    made = sweeps(
        """
say_there(os.environ["SLOT"])
wait_for("a"), wait_for("b")
evaluated(1, accuracy=1.0)
"""
    )
    assert made.run("--trials=4", "--slot=SLOT=a", "--slot='SLOT=b' OTHER=1") == 0
    assert made.states() == ["done"] * 4


def test_a_trial_that_falls_behind_is_pruned(sweeps, capfd):
    """It is asked to end, and saves."""
    made = sweeps(
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
evaluated(1, accuracy=0.0 if number == 5 else 1.0)
if number == 5:
    time.sleep(60)
evaluated(2, accuracy=2.0)
"""
    )
    assert made.run("--trials=7") == 0
    assert made.states() == ["done"] * 5 + ["pruned", "done"]
    assert made.table()[5][2:4] == ["0.0", "1"]
    assert "trial 5 is pruned" in capfd.readouterr().err


def test_without_a_pruner_none_is(sweeps):
    made = sweeps("evaluated(1, accuracy=0.0 if number == 5 else 1.0)")
    assert made.run("--trials=6", "--pruner=none") == 0
    assert made.states() == ["done"] * 6


def test_a_trial_that_asks_for_it_is_started_again(sweeps, capfd):
    made = sweeps(
        """
evaluated(evaluations() + 1, accuracy=1.0)
sys.exit(75 if evaluations() < 3 else 0)
"""
    )
    assert made.run("--trials=1") == 0
    assert made.table()[0][1:4] == ["done", "1.0", "3"]
    assert capfd.readouterr().err.count("asks to be started again") == 2


def test_one_that_asks_for_ever_has_failed(sweeps):
    made = sweeps("sys.exit(75)")
    assert made.run("--trials=1") == 1
    assert made.table()[0][1] == "failed"
    assert made.table()[0][-1] == "it exited with 75"


def test_a_dead_trial_is_failed_and_the_sweep_goes_on(sweeps, capfd):
    made = sweeps(
        """
print("trial", number, flush=True)
evaluated(1, accuracy=float(number))
if number == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if number == 1:
    raise ValueError("mine")
"""
    )
    assert made.run("--trials=3") == 0
    assert made.states() == ["failed", "failed", "done"]
    assert made.table()[0][-1] == "it was killed by SIGKILL"
    assert "ValueError: mine" in capfd.readouterr().err


def test_where_all_fail_the_sweep_ends(sweeps, capfd):
    made = sweeps("sys.exit(1)")
    assert made.run("--trials=9") == 2
    assert made.states() == ["failed"] * 3
    assert "3 trials in a row have failed" in capfd.readouterr().err


def test_a_refused_trial_ends_the_sweep_at_once(sweeps, capfd):
    """Others are saved; the same command goes on, or gives that trial up."""
    made = sweeps(
        """
if number == 1 and not os.path.exists(os.path.join(here, "mended")):
    wait_for("0")
    sys.exit("error: X is wrong" and sys.stderr.write("error: X is wrong\\\\n") and 2)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
say_there(str(number))
if not os.path.exists(os.path.join(here, "mended")):
    time.sleep(60)
evaluated(1, accuracy=1.0)
"""
    )
    assert made.run("--trials=4", "--parallel=2") == 2
    err = capfd.readouterr().err
    assert "trial 1 was refused:\n    error: X is wrong" in err
    assert "trial 0 is left at its beginning" in err
    assert "--fail=1" in err
    (made.folder / "mended").touch()
    assert made.run("--trials=4", "--fail=1") == 0
    assert made.run("--trials=4", "--fail=1") == 0
    assert made.states() == ["done", "failed", "done", "done"]


def test_names_and_values_are_checked_before_the_first_trial(sweeps, capfd):
    made = sweeps(check='print("error:", values, file=sys.stderr); sys.exit(2)')
    assert made.run("--search=Y=choice(1, 'a')") == 2
    # The last binding of a name.
    assert "error: {'Y': \"'a'\"}" in capfd.readouterr().err
    assert not list(made.sweep_dir.glob("trial-*"))
    # Nothing is begun: a mended command runs in the same folder.
    (made.folder / "check.py").write_text("")
    assert made.run("--trials=1") == 0


def test_a_metric_that_is_missing_is_told_and_may_be_mended(sweeps, capfd):
    made = sweeps()
    assert made.run("--metric=acuracy", "--maximize", "--trials=2") == 2
    err = capfd.readouterr().err
    assert "--metric=acuracy: the evaluation has no such metric." in err
    assert "Did you mean accuracy?" in err
    assert made.run("--trials=2") == 0
    assert made.states() == ["done", "done"]


def test_a_gin_file_that_was_changed_is_told(sweeps, capfd):
    made = sweeps(check='print("a = 1\\nb = 1\\n\\njob train")')
    assert made.run("--trials=1") == 0
    # What is of this machine does not count.
    (made.folder / "check.py").write_text('print("a = 1\\nb = 1\\n\\njob other")')
    assert made.run("--trials=1") == 0
    (made.folder / "check.py").write_text('print("a = 1\\nb = 2\\n\\njob train")')
    assert made.run("--trials=2") == 2
    err = capfd.readouterr().err
    assert "was begun:\n  - b = 1\n  + b = 2\nWrite another --sweep_dir" in err
    assert len(made.table()) == 1


def test_another_sweep_in_the_folder_is_refused(sweeps, capfd):
    made = sweeps()
    made.run("--trials=1")
    for other, says in (
        (("--metric=loss",), "begun with --metric=accuracy, and here is --metric=loss"),
        (("--search=X=uniform(0, 2)",), "begun with --search='X=uniform(0.0, 1.0)'"),
    ):
        assert made.run(*other) == 2
        assert says in capfd.readouterr().err
    assert made.run(after=["--gin.BATCH_SIZE=32"]) == 2
    assert "--gin.BATCH_SIZE=32: write the same" in capfd.readouterr().err
    assert made.states() == ["done"]


def test_a_second_sweep_at_the_same_time_is_refused(sweeps, capfd):
    made = sweeps("say_there('there'); wait_for('go'); evaluated(1, accuracy=1.0)")
    first = made.start("--trials=1")
    made.wait_for("there")
    assert made.run("--trials=1") == 2
    assert f"a sweep runs there, process {first.pid} on" in capfd.readouterr().err
    (made.folder / "go").touch()
    out, err = first.communicate(timeout=patience.stretched(20))
    assert first.returncode == 0, err
    assert "best: trial 0" in out


# Trial 1 saves one evaluation and waits; later it goes on from there.
INTERRUPTED = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
for step in range(evaluations() + 1, 4):
    evaluated(step, accuracy=float(values["X"]) * step)
    if number == 1 and step == 1:
        say_there("there")
        wait_for("never")
"""


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, 75)],
)
def test_killed_and_started_again_is_not_killed(sweeps, signum, code):
    made = sweeps()
    made.run("--trials=3")
    whole = made.table()
    made = sweeps(INTERRUPTED)
    made.sweep_dir = made.folder / "killed"
    process = made.start("--trials=3")
    made.wait_for("there")
    process.send_signal(signum)
    _, err = process.communicate(timeout=patience.stretched(20))
    assert process.returncode == code, err
    made.wait_until_none_is_left()
    assert ("trial 1 is left at accuracy" in err) == (code == 75)
    assert made.run("--trials=3") == 0
    assert made.table() == whole
    log = made.sweep_dir / "trial-0001" / "eval" / "evaluations.jsonl"
    assert log.read_text().count("\n") == 3  # None was made twice.


def test_a_second_ctrl_c_kills(sweeps):
    made = sweeps(
        """
signal.signal(signal.SIGTERM, lambda *_: say_there("asked"))
say_there("there")
while True:
    time.sleep(1)
"""
    )
    process = made.start("--trials=1")
    made.wait_for("there")
    process.send_signal(signal.SIGINT)
    made.wait_for("asked")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=patience.stretched(20))
    assert process.returncode == 130, err
    made.wait_until_none_is_left()


def test_one_that_does_not_end_is_killed(sweeps):
    made = sweeps(
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
evaluated(1, accuracy=0.0 if number == 5 else 1.0)
if number == 5:
    time.sleep(60)
"""
    )
    assert made.run("--trials=6", "--grace_secs=0.1") == 0
    assert made.states()[5] == "pruned"


def test_a_grid_has_all_combinations(sweeps):
    made = sweeps()
    grid = ("--search=X=uniform(0, 1, 0.5)", "--search=y=choice('a', 'b')")
    assert made.run(*grid, "--sampler=grid") == 0
    assert [row[4:6] for row in made.table()] == [
        [x, f"'{y}'"] for x in ("0.0", "0.5", "1.0") for y in "ab"
    ]


def test_commands_for_a_scheduler(sweeps, capfd):
    """Values are fixed by the first call; results come of the model_dirs, later."""
    made = sweeps(
        CURVE
        + """
if number != 1:
    ended = {"reason": "finished", "step": 3, "checkpoint_step": 3}
    json.dump(ended, open(os.path.join(folder, "training_ended.json"), "w"))
"""
    )
    assert made.run("--trials=3", "--print_commands") == 0
    commands = capfd.readouterr().out.splitlines()
    assert len(commands) == 3
    assert made.run("--trials=3", "--print_commands") == 0
    assert capfd.readouterr().out.splitlines() == commands
    for command in commands[:2]:
        subprocess.run(["bash", "-c", command], check=True)
    assert made.run("--collect") == 0
    out = capfd.readouterr().out
    assert re.search(r"^0 +done .*\n1 +open .*\n2 +open", out, re.M)
    assert made.run("--collect", "--fail=2") == 0
    assert re.search(r"^2 +failed", capfd.readouterr().out, re.M)
    assert made.run("--trials=3", "--print_commands") == 0
    assert capfd.readouterr().out.splitlines() == commands[1:2]


def test_trials_of_a_program_of_one_s_own(sweeps, capfd):
    made = sweeps(check="sys.exit(2)")  # There is nothing to check it by.
    (made.folder / "mine.py").write_text(
        """
import json, os, sys
flags = dict(each.lstrip("-").split("=", 1) for each in sys.argv[1:])
assert flags["steps"] == "3" and flags["kind"] in ("a", "b")
folder = os.path.join(flags["model_dir"], "eval_test")
os.makedirs(folder)
with open(os.path.join(folder, "evaluations.jsonl"), "w") as file:
    line = {"step": 3, "metrics": {"loss": float(flags["rate"])}}
    file.write(json.dumps(line) + chr(10))
"""
    )
    arguments = [
        "sweep",
        f"--sweep_dir={made.sweep_dir}",
        "--search=rate=uniform(0, 1)",
        "--search=kind=choice(a, b)",
        "--metric=loss",
        "--trials=2",
        "--",
        f"{made.folder}/mine.py",
    ]
    assert sweep.main([*arguments, "--steps=3"]) == 0
    out, _ = capfd.readouterr()
    assert made.states() == ["done", "done"]
    assert [row[2] for row in made.table()] == [row[4] for row in made.table()]
    assert re.search(r"mine.py --steps=3 --rate=0\.\d+ --kind=[ab] --model_dir=", out)
    assert sweep.main([*arguments, "--model_dir=runs/a"]) == 2
    assert "--model_dir=runs/a stands after --" in capfd.readouterr().err
    arguments[-1] += "x"
    assert sweep.main(arguments) == 2
    assert "mine.pyx' after -- is no file" in capfd.readouterr().err


def test_a_full_disk_is_told(sweeps, capfd):
    made = sweeps()
    made.run("--trials=1")
    capfd.readouterr()
    (made.sweep_dir / "study.db").write_bytes(b"no database" * 1000)
    assert made.run("--trials=2") == 2
    assert "study.db could not be read or written: " in capfd.readouterr().err


def test_trials_may_be_clusters(sweeps, capfd):
    """`launch` runs each, and its exit code is the trial's."""
    made = sweeps(CURVE)
    assert made.run("--trials=1", "--print_commands", "--launch=--workers=2") == 0
    (command,) = capfd.readouterr().out.splitlines()
    assert " -m pipeline.launch --workers=2 -- --gin_file=gin/digits.gin" in command
