"""The launcher: what it accepts, what each task is told, how their lines come out."""

import json
import re
import socket
import subprocess
import sys

import pytest

from pipeline import launch
from pipeline.cluster import tf_config
from pipeline.launcher import task_lines
from pipeline.process import run_log
from tests.clusters import ROOT

TOPOLOGIES = {
    "one": ((1, 0, False), ["worker 0"]),
    "workers": ((2, 0, False), ["worker 0", "worker 1"]),
    "evaluated": ((2, 0, True), ["worker 0", "worker 1", "evaluator 0"]),
    "servers": ((1, 2, False), ["chief 0", "worker 0", "ps 0", "ps 1"]),
    "all": ((2, 1, True), ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]),
}


@pytest.mark.parametrize("case", TOPOLOGIES)
def test_each_task_is_told_a_legal_cluster(case):
    (workers, ps, evaluator), names = TOPOLOGIES[case]
    jobs = launch.addresses(workers=workers, ps=ps, evaluator=evaluator)
    tasks = [(job, index) for job in jobs for index in range(len(jobs[job]))]
    assert [f"{job} {index}" for job, index in tasks] == names
    parsed = [
        tf_config.parse_tf_config(launch.tf_config(jobs, job=job, index=index))
        for job, index in tasks
    ]
    assert [(task.task_type, task.task_id) for task in parsed] == tasks
    assert [task.is_chief for task in parsed] == [True] + [False] * (len(tasks) - 1)
    assert {task.has_evaluator for task in parsed} == {evaluator}
    training = [task for task in parsed if task.task_type != "evaluator"]
    assert {task.num_ps_replicas for task in training} == {ps}
    assert {task.num_worker_replicas for task in training} == {workers + (ps > 0)}


def test_ports_are_kept_for_servers_that_ask_for_them():
    jobs = launch.addresses(workers=3, ps=2, evaluator=True)
    ports = [int(a.rpartition(":")[2]) for listed in jobs.values() for a in listed]
    assert len(set(ports)) == 7
    for port in ports:
        # As an address that the system gives out would be taken.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("level", [None, "1"])
def test_tasks_have_the_log_level_that_the_user_set(monkeypatch, level):
    """Not the one that this process chose, as a task with --debug has another."""
    monkeypatch.setattr(run_log, "_GIVEN", level)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    (task,) = launch._tasks({"worker": ["a:1"]}, ["true"])
    assert task.environ.get("TF_CPP_MIN_LOG_LEVEL") == level


# What this process opens next would take the place of a stream that is closed.
CLOSED = """
import os, sys
sys.stderr = sys.stdout = None
if sys.argv[1] == "launch":
    from pipeline import launch
    code = launch.main(["launch", "--", sys.argv[2]])
else:
    from pipeline.mistakes import exits
    exits.run(lambda: sys.stderr.write("words") and 0)
os._exit(code)
"""


@pytest.mark.parametrize("program", ["launch", "run"])
def test_closed_streams(program, tmp_path):
    (tmp_path / "task.py").write_text("print('words')")
    command = [sys.executable, "-c", CLOSED, program, str(tmp_path / "task.py")]
    done = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *command], cwd=ROOT)
    assert done.returncode == 0


REFUSED = {
    "nothing": ([], "nothing stands after --: write .*For example: python -m"),
    "nothing_after": (["--workers=2", "--"], "nothing stands after --: write"),
    "mistyped": (
        ["--worker=2", "--", "--model_dir=m"],
        "Unknown command line flag 'worker'.*mean: workers.*main are written after --",
    ),
    "a_program_before": (
        ["--workers=2", "my_program.py", "--steps=3"],
        "flag 'steps'. Flags of .*main.*, and so are a .*: -- my_program.py --steps",
    ),
    "a_module_that_is_not_there": (
        ["--module=no_package.train", "--"],
        "--module=no_package.train: there is no module 'no_package': write it as",
    ),
    "a_module_that_its_package_lacks": (
        ["--module=tests.scripts.no_module", "--"],
        "there is no module 'tests.scripts.no_module': ",
    ),
    "a_file_as_a_module": (
        ["--module=tests.scripts.two_roles.py", "--"],
        "no module 'tests.scripts.two_roles.py'.*file.*: -- my_program.py",
    ),
    "a_module_without_its_name": (["--module=.train", "--"], "there is no module ''"),
    "a_package_that_does_not_run": (
        ["--module=tests", "--"],
        "--module=tests is a package without __main__.py",
    ),
    "a_switch_with_a_value": (
        ["--evaluator=2", "--", "--model_dir=m"],
        "--evaluator=2: this flag takes no value: write --evaluator",
    ),
    "flags_of_main_before": (["--model_dir=m"], "Unknown .*'model_dir'.*after --"),
    "a_word": (["2", "--", "--model_dir=m"], "unexpected argument '2'.*--flag=value"),
    "no_worker": (
        ["--workers=0", "--", "--model_dir=m"],
        "--workers=0: 0 is not a positive integer",
    ),
    "no_number": (["--ps=x", "--", "--model_dir=m"], "--ps=x: .*'x'"),
    "negative_time": (
        ["--grace_secs=-1", "--", "--model_dir=m"],
        "--grace_secs=-1.*non-neg",
    ),
    "a_program_that_is_not_there": (
        ["--", "my_program.py", "--steps=3"],
        "'my_program.py' after -- is no file.*--module=my_package.my_module",
    ),
    "no_model_dir": (["--", "--gin_file=f"], "no --model_dir.*add --model_dir=runs/1"),
    "empty_model_dir": (["--", "--model_dir="], "no --model_dir after --"),
    "single_host": (
        ["--", "--model_dir=m", "--execution=single_host"],
        "--execution=single_host with --workers=1.*--execution=multi_worker, .*--ps=1",
    ),
    "workers_with_ps": (
        ["--ps=1", "--", "--model_dir", "m", "--execution", "multi_worker"],
        "--execution=multi_worker.*--execution=parameter_server.*Leave out --ps",
    ),
    "ps_without": (
        ["--execution=parameter_server", "--", "--model_dir=m"],
        "--ps=0: this cluster is for --execution=multi_worker.*Add --ps=1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case, capsys):
    arguments, message = REFUSED[case]
    assert launch.main(["launch", *arguments]) == 2
    assert re.search(f"(?s)^error: .*{message}", capsys.readouterr().err)


def test_help(capsys):
    assert launch.main(["launch", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--workers", "--ps", "evaluator", "--grace_secs", "--exit_secs"):
        assert flag in text


def test_it_does_not_wait_for_tensorflow():
    program = "import sys; from pipeline import launch; sys.exit('keras' in sys.modules"
    program += " or 'tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize(
    ("argument", "after", "added", "tasks"),
    [
        ("--workers=2", ["--model_dir=m"], ["--execution=multi_worker"], 2),
        ("--ps=1", ["--model_dir", "m"], ["--execution=parameter_server"], 3),
        ("--ps=1", ["--model_dir=m", "--execution=parameter_server"], [], 3),
        ("--ps=0", ["--model_dir=m", "-execution", "multi_worker"], [], 1),
        (
            "--execution=multi_worker",
            ["--model_dir=a b", "--gin_param=x = 'y'"],
            ["--execution=multi_worker"],
            1,
        ),
    ],
)
def test_every_task_gets_the_arguments(start, argument, after, added, tasks):
    launched = start("print(json.dumps(sys.argv[1:]))", argument, after=after)
    code, out, _ = launched.finish()
    told = [json.loads(line.partition("] ")[2]) for line in out.splitlines()]
    assert code == 0
    assert told == [[*after, *added]] * tasks


def test_a_program_of_ones_own(start, tmp_path):
    """As a file, or as a module: with its arguments, and nothing added."""
    own = tmp_path / "own_program.py"
    own.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))")
    for flags, after in (
        (["--workers=2"], [str(own), "--steps=3"]),
        (["--workers=2", "--module=own_program"], ["--steps=3"]),
    ):
        code, out, err = start("", *flags, after=after).finish()
        assert code == 0, err
        assert sorted(out.splitlines()) == [
            f'[worker {index}] ["--steps=3"]' for index in range(2)
        ]


def test_lines_are_whole_and_say_whose_they_are(start):
    program = """
for i in range(300):
    # A line in two parts, which another task's could come between.
    for part in (f"{task} out {i} ", "x" * 200 + "\\n"):
        sys.stdout.write(part)
    sys.stderr.write(f"{task} err {i}\\n")
sys.stdout.write("last words")
"""
    code, out, err = start(program, "--workers=2", "--evaluator").finish()
    assert code == 0
    for task in ("worker 0", "worker 1", "evaluator 0"):
        mine = [line for line in out.splitlines() if line.startswith(f"[{task}] ")]
        expected = [f"[{task}] {task} out {i} {'x' * 200}" for i in range(300)]
        assert mine == [*expected, f"[{task}] last words"]
        errors = [line for line in err.splitlines() if line.startswith(f"[{task}] ")]
        assert errors == [f"[{task}] {task} err {i}" for i in range(300)]
    assert len(out.splitlines()) == 3 * 301


def test_progress_is_shown_in_its_last_state():
    lines = task_lines.Lines("[worker 0] ")
    assert lines.feed(b"one\r\n\ntwo", now=0) == b"[worker 0] one\n[worker 0] \n"
    assert lines.feed(b" more\n", now=0) == b"[worker 0] two more\n"
    assert lines.feed(b"10%\r20%", now=1) == b"[worker 0] 10%\n"
    assert lines.feed(b"\r30%\r40", now=2) == b""
    assert lines.feed(b"%\r50%", now=11) == b"[worker 0] 40%\n"
    assert lines.feed(b"\r100%\n", now=12) == b"[worker 0] 100%\n"
    assert lines.end() == b""
    assert lines.feed(b"killed", now=13) == b""
    assert lines.end() == b"[worker 0] killed\n"
