"""The launcher with small programs as tasks, which need no TensorFlow."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from gin_estimator import launch
from gin_estimator.cluster import tf_config
from gin_estimator.launcher import addresses, processes
from gin_estimator.launcher.flags import checked
from gin_estimator.launcher.num_workers import NumWorkers
from tasks import Task

PROGRAM = """
import json, os, pathlib, signal, subprocess, sys, time
config = os.environ["TF_CONFIG"]
task = "{type} {index}".format(**json.loads(config)["task"])

def starts_of(name):
    path = pathlib.Path(f"starts of {name}")
    return len(path.read_text().splitlines()) if path.exists() else 0

def wait_for(name, number=1):
    end = time.monotonic() + 60
    while starts_of(name) < number and time.monotonic() < end:
        time.sleep(0.01)

def started():
    with open(f"starts of {task}", "a") as file:
        file.write(config + "\\n")

"""
# A process that ignores signals, with a child that does not end either.
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
started()
time.sleep(100)
"""


class Launched(Task):
    def __init__(self, folder, program, flags, after=None):
        self.folder = folder
        (folder / "program.py").write_text(PROGRAM + textwrap.dedent(program))
        command = ["-m", "gin_estimator.launch", *flags, "--", *(after or ["program.py"])]
        environment = {"LAUNCHED_IN": str(folder)}
        (folder / "launcher.log").write_text("")
        super().__init__("launcher", command, folder, environment, cwd=folder, fresh=True)

    def wait_for_start(self, *names, number=1):
        end = time.monotonic() + 60
        while any(len(self.starts(name)) < number for name in names):
            assert time.monotonic() < end, self.output
            time.sleep(0.02)

    def starts(self, name):
        path = self.folder / f"starts of {name}"
        return path.read_text().splitlines() if path.exists() else []

    def lines(self, name):
        return re.findall(rf"^\[{name}\] (.*)$", self.output, re.MULTILINE)

    def left(self):
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("LAUNCHED_IN") == str(self.folder):
                    found += [process] * (process.status() != psutil.STATUS_ZOMBIE)
            except psutil.Error:
                pass
        return found


@pytest.fixture
def start(tmp_path):
    launched = []

    def start(program, *flags, after=None):
        launched.append(Launched(tmp_path, program, flags, after))
        return launched[-1]

    yield start
    for each in launched:
        each.send(signal.SIGKILL)
        each.wait()
        end = time.monotonic() + 10
        while each.left() and time.monotonic() < end:
            time.sleep(0.05)
        assert not each.left()


@pytest.mark.parametrize(
    "sizes, names",
    [
        ((2, 0, True), ["worker 0", "worker 1", "evaluator 0"]),
        ((2, 1, False), ["chief 0", "worker 0", "worker 1", "ps 0"]),
    ],
)
def test_each_task_has_a_valid_cluster(sizes, names):
    workers, ps, evaluator = sizes
    jobs = addresses.free_addresses(workers=workers, ps=ps, evaluator=evaluator)
    tasks = [(job, index) for job in jobs for index in range(len(jobs[job]))]
    assert [f"{job} {index}" for job, index in tasks] == names
    parsed = [tf_config.parse_tf_config(addresses.tf_config(jobs, *task)) for task in tasks]
    assert [each.name for each in parsed] == names
    assert [each.is_chief for each in parsed] == [True] + [False] * (len(tasks) - 1)
    assert {each.has_evaluator for each in parsed} == {evaluator}


def test_ports_are_kept_for_the_tasks():
    jobs = addresses.free_addresses(workers=3, ps=2, evaluator=True)
    ports = [tf_config.split(address)[1] for each in jobs.values() for address in each]
    assert len(set(ports)) == 7
    for port in ports:
        # As for a program that asks for any free port.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        socket.create_server(("127.0.0.1", port)).close()


MODEL_DIR = "--model_dir=m"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "nothing is written after --.*Example: gin-estimator launch"),
        (["--worker=2", "--", MODEL_DIR], "unrecognized.*--worker=2.*after --.*mean --workers"),
        (
            [MODEL_DIR, "--"],
            "--model_dir=m. Flags of gin-estimator.*after --",
        ),
        (["--workers=0", "--", MODEL_DIR], "--workers: 0 is less than 1"),
        (["--ps=x", "--", MODEL_DIR], "--ps: invalid number value: 'x'"),
        (["--grace_secs=-1", "--", MODEL_DIR], "--grace_secs: duration is -1.0: expected seconds"),
        (["--", "absent.py"], "the program is 'absent.py': expected a file"),
        (["--", "--gin_file=f"], "--model_dir is missing after --"),
        (
            ["--", MODEL_DIR, "--execution=single_host"],
            "--execution is 'single_host'.*multi_worker",
        ),
        (["--ps=1", "--", MODEL_DIR, "--execution", "multi_worker"], "expected parameter_server"),
        (["--min_workers=2", "--ps=1", "--", MODEL_DIR], "--min_workers is for .* no --ps"),
        (["--min_workers=2", "--", MODEL_DIR], "--min_workers is 2 with --workers=1: expected"),
        (["--min_workers=1", "--", __file__], "--model_dir is missing after -- with --min_workers"),
        (["--min_workers=1", "--", "--model_dir=gs://b"], "--model_dir is gs://b.*a local"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        launch.main(["launch", *arguments])
    assert ended.value.code == 2
    assert re.search(f"^error: .*{message}", capsys.readouterr().err, re.DOTALL)


def test_help_needs_no_tensorflow(tmp_path):
    program = """
import sys
from gin_estimator import launch
try:
    launch.main(["launch", "--help"])
finally:
    print("TensorFlow" if "tensorflow" in sys.modules or "keras" in sys.modules else "none")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "--max_restarts" in done.stdout and done.stdout.endswith("none\n")


def test_each_task_gets_the_arguments(start, tmp_path):
    (tmp_path / "fake.py").write_text("import sys\nprint(sys.argv[1:])")
    for flags, after, expected in (
        (["--module=fake"], ["--steps=3", "a b"], ["--steps=3", "a b"]),
        ([], ["fake.py", "--steps=3"], ["--steps=3"]),
    ):
        launched = start("", "--workers=2", *flags, after=after)
        assert launched.wait() == 0
        assert launched.lines("worker 0") == launched.lines("worker 1") == [str(expected)]
    options = launch._parser().parse_args(["--ps=1"])
    command = checked(launch._parser(), options, ["--model_dir", "m"])
    assert command == [
        "-m",
        "gin_estimator.main",
        "--model_dir",
        "m",
        "--execution=parameter_server",
    ]


def test_lines_are_whole(start):
    launched = start(
        """
        for i in range(300):
            for part in (f"out {i} ", "x" * 200 + "\\n"):
                sys.stdout.write(part)
            sys.stderr.write(f"err {i}\\n")
        sys.stdout.write("the last")
        """,
        "--workers=2",
        "--evaluator",
    )
    assert launched.wait() == 0
    for task in ("worker 0", "worker 1", "evaluator 0"):
        lines = launched.lines(task)
        out = [f"out {i} {'x' * 200}" for i in range(300)]
        assert [line for line in lines if not line.startswith("err")] == [*out, "the last"]
        assert [line for line in lines if line.startswith("err")] == [
            f"err {i}" for i in range(300)
        ]


def test_what_silent_tasks_wrote_last_is_logged(tmp_path, monkeypatch, capfd):
    stop, lines = tmp_path / "stop", []
    program = f"""
import os, time
print("I1128 08:20:43.1 123 stock.py:31] train | step 3", flush=True)
while not os.path.exists({str(stop)!r}):
    time.sleep(0.01)
"""

    def log(text):
        lines.append(text)
        if "wrote: train | step 3" in text:
            stop.touch()

    monkeypatch.setattr(processes, "log", log)
    monkeypatch.setattr(processes, "_SILENCE_SECS", 0.4)
    monkeypatch.setattr(processes, "_STATE_SECS", 0.3)
    task = processes.Task(
        name="worker 0", command=[sys.executable, "-c", program], environment=os.environ
    )
    options = {"grace_secs": 1.0, "exit_secs": 1.0, "max_restarts": 0}
    assert processes.run(lambda: [task], **options) == 0
    for expected in (
        r"no line for \d+ s \| worker 0, process \d+, wrote: train \| step 3",
        r"state \| running for 0:00:0\d: worker 0 \| step 3, 0:00:0\d ago",
    ):
        assert any(re.fullmatch(expected, line) for line in lines), lines


def test_the_first_failure_ends_all(start):
    program = """
started()
if task == "worker 0":
    wait_for("worker 1")
    sys.exit(75)
if task == "worker 1":
    wait_for("worker 2", 2)  # The second time in STUBBORN.
    time.sleep(0.5)
    sys.stderr.write("the reason")
    sys.exit(3)
"""
    launched = start(program + STUBBORN, "--workers=3", "--grace_secs=0.3")
    assert launched.wait() == 3
    assert launched.lines("worker 1") == ["the reason"]
    assert "[launch] worker 1 exited with 3; SIGTERM to worker 2, SIGKILL 0.3 s" in launched.output
    assert "worker 2 did not end within 0.3 s: SIGKILL" in launched.output


FAILS_AT_FIRST = """
before = starts_of(task)
started()
if before < FAILURES and task == "worker 1":
    wait_for("worker 0", before + 1)
    os.kill(os.getpid(), 9)
if before < FAILURES:
    time.sleep(60)
"""


@pytest.mark.parametrize("failures, code, starts", [(2, 0, 3), (3, 137, 3)])
def test_all_tasks_are_started_again_on_new_ports(start, failures, code, starts):
    program = f"FAILURES = {failures}\n{FAILS_AT_FIRST}"
    launched = start(program, "--workers=2", "--max_restarts=2")
    assert launched.wait() == code
    assert launched.output.count(
        "worker 1 was killed by SIGKILL; SIGTERM to worker 0"
    ) == starts - (code == 0)
    assert len(set(launched.starts("worker 0"))) == starts


def test_a_lost_worker_is_left_out_until_a_checkpoint(start):
    """The last of four fails, three are refused, two save, and all are started again."""
    launched = start(
        """
        number = len(json.loads(config)["cluster"]["worker"])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        started()
        if number == 4 and os.path.exists("m"):
            sys.exit(0)
        if task == "worker 3":
            for name in ("worker 0", "worker 1", "worker 2"):
                wait_for(name)
            sys.exit(3)
        if number == 3:
            sys.exit(2)
        if number == 2 and task == "worker 0":
            os.makedirs("m")
            pathlib.Path("m/model.ckpt-10.index").touch()
        time.sleep(60)
        """,
        "--workers=4",
        "--min_workers=2",
        "--retry_secs=0.1",
        after=["program.py", "--model_dir=m"],
    )
    assert launched.wait() == 0, launched.output
    configs = map(json.loads, launched.starts("worker 0"))
    assert [len(each["cluster"]["worker"]) for each in configs] == [4, 3, 2, 4]
    assert "worker 3 exited with 3; SIGTERM to worker 0, worker 1" in launched.output
    assert "starting 2 of 4 workers, and all again after the next checkpoint" in launched.output
    assert "a checkpoint was written: starting all 4 workers; SIGTERM" in launched.output


def test_the_number_of_workers_of_each_start(tmp_path):
    now = [0.0]
    workers = NumWorkers(4, 2, model_dir=str(tmp_path), retry_secs=60, clock=lambda: now[0])

    def fails(saved=None):
        workers.begin()
        assert not workers.grows()
        if saved is not None:
            (tmp_path / f"model.ckpt-{saved}.index").touch()
        return workers.now if workers.failed() else None

    assert [fails(), fails(), fails()] == [3, 2, None]
    assert fails(saved=10) == 4  # All are tried again, since training continued.
    assert [fails(), fails(saved=20)] == [3, 4]
    assert [fails(saved=30), fails(saved=30)] == [4, 3]  # The same step is no progress.
    workers.begin()
    (tmp_path / "model.ckpt-40.index").touch()
    grown = []
    for _ in range(3):  # 60 s, then twice as long after each failure of all.
        before = now[0]
        while not workers.grows():
            now[0] += 1
        grown.append(now[0] - before)
        assert workers.now == 4
        assert fails() == 3
        workers.begin()
        (tmp_path / f"model.ckpt-{50 + now[0]:.0f}.index").touch()
    assert grown == [60, 120, 240]


def test_a_refusal_is_not_repeated(start):
    launched = start("started()\nsys.exit(2)", "--max_restarts=3")
    assert launched.wait() == 2
    assert len(launched.starts("worker 0")) == 1


@pytest.mark.parametrize(
    "flags, dying, replaced",
    [
        (["--ps=1"], "worker 1", ["worker 1"]),
        (["--evaluator"], "evaluator 0", ["evaluator 0"]),
        (["--ps=1"], "ps 0", ["chief 0", "worker 0", "worker 1", "ps 0"]),
    ],
)
def test_which_tasks_are_started_again(start, flags, dying, replaced):
    leader = "chief 0" if "--ps=1" in flags else "worker 0"
    launched = start(
        f"""
        started()
        if task == {dying!r}:
            for name in {[leader, *replaced]!r}:
                wait_for(name)
            if starts_of(task) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        elif task == {leader!r}:
            wait_for({dying!r}, 2)
        elif starts_of(task) == 1 and task in {replaced!r}:
            time.sleep(60)
        """,
        "--workers=2",
        "--max_restarts=1",
        *flags,
    )
    assert launched.wait() == 0, launched.output
    tasks = ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]
    assert [name for name in tasks if len(launched.starts(name)) == 2] == replaced
    first, second = launched.starts(dying)
    assert (first == second) == (len(replaced) == 1)  # Alone, it keeps its address.


def test_without_restarts_a_replaceable_task_ends_all(start):
    program = "started()\nif task == 'worker 0': sys.exit(3)\ntime.sleep(60)"
    launched = start(program, "--ps=1", "--max_restarts=1")
    assert launched.wait() == 3
    assert len(launched.starts("worker 0")) == 2 and len(launched.starts("chief 0")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_each_task_once(start, number):
    launched = start(
        """
        got = []
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, lambda number, _: got.append(signal.Signals(number).name))
        started()
        while not got:
            time.sleep(0.01)
        time.sleep(0.3)
        print(*got)
        """,
        "--ps=1",
        "--max_restarts=1",
    )
    tasks = ["chief 0", "worker 0", "ps 0"]
    launched.wait_for_start(*tasks)
    launched.send(number)
    assert launched.wait() == 0  # The tasks saved and ended well.
    assert [launched.lines(task) for task in tasks] == [[number.name]] * 3
    assert (
        f"[launch] got {number.name}; {number.name} to chief 0, worker 0, ps 0" in launched.output
    )


def test_no_restart_after_a_signal(start):
    launched = start("started()\ntime.sleep(60)", "--max_restarts=3")
    launched.wait_for_start("worker 0")
    launched.send(signal.SIGTERM)
    assert launched.wait() == 128 + signal.SIGTERM
    assert len(launched.starts("worker 0")) == 1


def test_nohup(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM + "started()\nwait_for('hangup')")
    with subprocess.Popen(
        [sys.executable, "-m", "gin_estimator.launch", "--", "program.py"],
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 60
        while not (tmp_path / "starts of worker 0").exists() and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGHUP)
        (tmp_path / "starts of hangup").write_text("1\n")
        assert process.wait(60) == 0


def test_tasks_that_ignore_signals_are_killed(start):
    launched = start(STUBBORN, "--workers=2", "--grace_secs=0.5")
    launched.wait_for_start("worker 0", "worker 1")
    launched.send(signal.SIGTERM)
    assert launched.wait() == 128 + signal.SIGTERM
    assert "worker 0, worker 1 did not end within 0.5 s: SIGKILL" in launched.output


def test_a_second_ctrl_c_kills_at_once(start):
    launched = start(STUBBORN, "--workers=2")
    launched.wait_for_start("worker 0", "worker 1")
    launched.send(signal.SIGINT)
    launched.wait_for("got SIGINT")
    launched.send(signal.SIGINT)
    assert launched.wait() == 128 + signal.SIGINT


def test_a_killed_launcher_leaves_no_process(start):
    launched = start(STUBBORN, "--ps=1", "--evaluator")
    launched.wait_for_start("chief 0", "worker 0", "ps 0", "evaluator 0")
    assert len(launched.left()) == 10  # The launcher, its guard, four tasks and their children.
    launched.send(signal.SIGKILL)  # The fixture waits until no process is left.


def test_tasks_that_do_not_follow_the_leader_are_named(start):
    program = "if task != 'evaluator 0': sys.exit(0)\ntime.sleep(60)"
    launched = start(program, "--ps=1", "--evaluator", "--exit_secs=0.5")
    assert launched.wait() == 1
    assert "evaluator 0 did not end within 0.5 s after chief 0. Set --exit_secs" in launched.output


def test_order_of_ends(start):
    launched = start(
        """
        started()
        if task == "chief 0":  # A worker that ends before the chief ends no other task.
            wait_for("worker 0")
            time.sleep(0.5)
        if task == "evaluator 0":  # It may take its time after the chief.
            time.sleep(1.5)
        """,
        "--ps=1",
        "--evaluator",
        "--exit_secs=30",
    )
    assert launched.wait() == 0
    assert "SIG" not in launched.output


def test_a_reader_that_goes_away(tmp_path):
    (tmp_path / "program.py").write_text("while True: print('line')")
    process = subprocess.Popen(
        [sys.executable, "-m", "gin_estimator.launch", "--", "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 128 + signal.SIGPIPE


def test_a_failed_chief_fails_the_job_though_its_servers_end_well(start):
    program = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    started()
    if task == "chief 0":
        wait_for("worker 0")
        wait_for("ps 0")
        sys.exit(1)
    time.sleep(60)
    """
    launched = start(program, "--ps=1", "--max_restarts=0")
    assert launched.wait() == 1
    assert "chief 0 exited with 1; SIGTERM to worker 0, ps 0" in launched.output
