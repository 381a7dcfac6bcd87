"""How programs end: the command, and a `main` of one's own; signals at any time."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
from absl import flags, logging

import pipeline as ge
from pipeline import main
from pipeline.command import gin_config
from pipeline.process import signals
from tests import clusters, fakes
from tests import forked as processes

X, Y = fakes.classification_data(64)
OWN_MAIN = str(clusters.ROOT / "tests" / "scripts" / "own_main.py")
NUMBERS = {signal.SIGINT: 130, signal.SIGTERM: 75}

pytestmark = pytest.mark.usefixtures("fresh_gin")


def data(**options):
    return fakes.make_input_fn(X, Y, batch_size=16, **options)


def code_of(program, **options):
    with pytest.raises(SystemExit) as ended:
        ge.run(program, **options)
    return ended.value.code


def ask(number):
    os.kill(os.getpid(), number)


# Codes and words of a program's own main.


def test_a_main_that_ends_well(tmp_path):
    assert code_of(lambda: None) == 0
    assert code_of(lambda: ({"loss": 1.0}, [])) == 0
    assert code_of(lambda: 3) == 3


def test_what_is_refused_names_the_users_line(tmp_path, capsys):
    def program():
        fakes.make_estimator(tmp_path).train(data(), max_steps=-1)

    assert code_of(program) == 2
    said = capsys.readouterr().err
    assert "error: max_steps is -1" in said
    assert "fakes.make_estimator(tmp_path).train(data(), max_steps=-1)" in said
    assert len(said.splitlines()) < 5


def test_what_fails_in_the_users_function_takes_few_lines(tmp_path, capsys):
    def input_fn():
        raise KeyError("mine")

    def program():
        fakes.make_estimator(tmp_path).train(input_fn, max_steps=1)

    assert code_of(program) == 1
    said = capsys.readouterr().err
    assert "KeyError: 'mine'" in said
    assert "This happened in input_fn" in said
    assert "pipeline.run(main, debug=True) shows the whole traceback" in said
    assert "Traceback" not in said
    with pytest.raises(KeyError):
        ge.run(program, debug=True)


@pytest.mark.parametrize("inside", [True, False])
def test_in_a_notebook_what_ends_well_returns(monkeypatch, inside):
    """There SystemExit shows as an error, and the cell as one that failed."""
    shell = types.SimpleNamespace(get_ipython=lambda: object() if inside else None)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    if inside:
        assert ge.run(lambda: None) is None
    else:
        assert code_of(lambda: None) == 0
    assert code_of(lambda: 3) == 3


def test_other_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        ge.run(lambda: 1 / 0)


def test_a_main_of_one_argument_gets_what_absl_leaves(monkeypatch):
    values = flags.FlagValues()
    flags.DEFINE_integer("steps", 1, "Steps.", flag_values=values)
    monkeypatch.setattr(flags, "FLAGS", values)
    given = []
    argv = ["prog", "--steps=3", "rest"]
    assert code_of(lambda rest: given.append((values.steps, rest)), argv=argv) == 0
    assert given == [(3, ["prog", "rest"])]
    assert code_of(lambda rest: None, argv=["prog", "--stesp=3"]) == 2


def test_the_log_is_the_commands():
    assert code_of(lambda: None) == 0
    assert logging.get_verbosity() == logging.INFO


# Signals.


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("when", ["before", "input_fn", "network", "after"])
def test_a_signal_outside_of_training(tmp_path, capsys, number, when):
    def network():
        if when == "network":
            ask(number)
        return fakes.network()

    def input_fn():
        if when == "input_fn":
            ask(number)
        return data()()

    def program():
        if when == "before":
            ask(number)
        estimator = fakes.make_estimator(tmp_path, network=network)
        estimator.train(input_fn, max_steps=1)
        ask(number)

    handlers = [signal.getsignal(n) for n in NUMBERS]
    assert code_of(program) == NUMBERS[number]
    said = capsys.readouterr().err
    words = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert f"{words}; the same command goes on from the last save, if there is" in said
    assert "Traceback" not in said
    assert not (tmp_path / "training_ended.json").exists()
    assert [signal.getsignal(n) for n in NUMBERS] == handlers


class Asks(ge.Hook):
    """Sends signals at a step."""

    def __init__(self, step, *numbers):
        self.every_steps, self._numbers = step, numbers

    def after_step(self, run):
        if run.step == self.every_steps:
            for number in self._numbers:
                ask(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_training_is_saved_without_a_hook_of_ones_own(tmp_path, number, capfd):
    after = []

    def program():
        estimator = fakes.make_estimator(tmp_path, steps_per_loop=5)
        estimator.train(data(change=lambda d: d.repeat()), hooks=[Asks(7, number)])
        after.append("train")

    assert code_of(program) == 75
    (*_, step) = fakes.checkpoint_steps(tmp_path)
    assert 7 <= step <= 12
    assert not after
    said = capfd.readouterr().err
    assert said.index("stopping; saving") < said.index(f"ckpt-{step} was saved")


def test_a_signal_at_the_last_step_ends_the_program_after_the_save(tmp_path):
    after = []

    def program():
        fakes.make_estimator(tmp_path).train(
            data(), max_steps=3, hooks=[Asks(3, signal.SIGTERM)]
        )
        after.append("train")

    assert code_of(program) == 75
    assert fakes.checkpoint_steps(tmp_path)[-1] == 3
    assert not after


def test_ctrl_c_twice(tmp_path, capsys):
    def program():
        fakes.make_estimator(tmp_path).train(
            data(change=lambda d: d.repeat()),
            hooks=[Asks(3, signal.SIGINT, signal.SIGINT)],
        )

    assert code_of(program) == 130
    assert "interrupted; the same command" in capsys.readouterr().err


def test_an_error_gives_the_signals_back(tmp_path):
    class Fails(ge.Hook):
        every_steps = 1

        def after_step(self, run):
            raise ValueError("mine")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="mine"):
        fakes.make_estimator(tmp_path).train(
            data(), max_steps=3, hooks=[ge.PreemptionHook(), Fails()]
        )
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("job", ["train", "evaluate", "predict", "export"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_to_the_command(own_folder, monkeypatch, capsys, job, number):
    """While it reads its configuration."""
    pathlib.Path("asks.gin").write_text("RunConfig.model_dir = 'run'")
    monkeypatch.setattr(gin_config, "parse", lambda *_: ask(number))
    assert main.main(["main", "--gin_file=asks.gin", f"--job={job}"]) == NUMBERS[number]
    assert "Traceback" not in capsys.readouterr().err


def test_a_signal_to_an_evaluator(tmp_path, monkeypatch):
    """While it waits."""
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "evaluator", "index": 0}}')
    timer = threading.Timer(0.5, ask, [signal.SIGTERM])

    def program():
        estimator = fakes.make_estimator(tmp_path)
        timer.start()
        ge.train_and_evaluate(estimator, ge.TrainSpec(data()), ge.EvalSpec(data()))

    assert code_of(program) == 75
    timer.join()


# TensorFlow is imported meanwhile; what would import it asks instead.
IMPORTS = """
import importlib, os, signal, sys
from pipeline import launch, main
from pipeline.launcher import processes
def asks(*args, **kwargs):
    os.kill(os.getpid(), int(sys.argv[1]))
importlib.import_module = processes.run_once = asks
{}
"""


@pytest.mark.parametrize(
    "call",
    [
        "main.main(['main', '--gin_file=gin/digits.gin'])",
        "launch.main(['launch', '--', '--model_dir=m'])",
    ],
)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_during_the_imports(number, call):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(call), str(int(number))],
        cwd=clusters.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == NUMBERS[number], done.stderr
    assert done.stderr.strip() == signals.text_of(number)


def test_a_forked_child_is_not_its_parent(tmp_path):
    """What ends a pool of processes does not end the program."""

    def program():
        child = os.fork()
        if not child:
            (tmp_path / "ready").touch()
            time.sleep(20)
            os._exit(0)
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM

    assert code_of(program) == 0


def forked(work):
    """The id of a child that does something, then exits by its result."""
    child = os.fork()
    if not child:
        os._exit(work() or 0)
    return child


def test_a_forked_child_that_lives_does_not_hold_the_program(tmp_path):
    def lives():
        time.sleep(20)
        (tmp_path / "late").touch()

    children = []
    assert code_of(lambda: children.append(forked(lives))) == 0
    assert not (tmp_path / "late").exists()
    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)


def test_a_forked_child_keeps_what_the_program_set(monkeypatch):
    """As one that ignores Ctrl-C while a pool's processes start."""

    def program():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        expected = [signal.SIG_IGN, signal.SIG_DFL]
        child = forked(lambda: [signal.getsignal(n) for n in NUMBERS] != expected)
        assert os.waitpid(child, 0)[1] == 0

    assert code_of(program) == 0


def test_a_handler_of_the_programs_own_is_left_alone(monkeypatch):
    """It is given its time, for signal after signal."""
    monkeypatch.setattr(signals, "_DEAF_SECS", 0.0)
    monkeypatch.setattr(signals, "_UNWIND_SECS", 0.0)
    ended = []
    monkeypatch.setattr(signals, "_exit", ended.append)
    received = []

    def program():
        for number in NUMBERS:
            signal.signal(number, lambda n, frame: received.append(n))
        for number in (*NUMBERS, *NUMBERS):
            ask(number)
            time.sleep(0.1)

    assert code_of(program) == 0
    assert received == [*NUMBERS, *NUMBERS]
    assert not ended


def test_other_signals_that_stop_a_training(capfd):
    """SIGTERM then ends the program, and Ctrl-C is answered as before."""

    def program():
        before = signal.getsignal(signal.SIGINT)
        with signals.Notes([signal.SIGUSR1], answer="noted") as notes:
            ask(signal.SIGUSR1)
            assert notes.received == signal.SIGUSR1
        assert signal.getsignal(signal.SIGINT) == before
        with signals.Notes([signal.SIGUSR1], answer="never said"):
            ask(signal.SIGTERM)

    assert code_of(program) == 75
    said = capfd.readouterr().err
    assert said.count("noted") == 1
    assert "never said" not in said


# Real processes.


def test_a_wait_in_tensorflow_is_ended(tmp_path):
    """Where Python runs no handler, and would not until TensorFlow returns."""
    log = tmp_path / "log"
    environ = {**os.environ, "PYTHONPATH": str(clusters.ROOT)}
    process = processes.Program([OWN_MAIN, "waits_in_tensorflow"], environ, log)
    task = clusters.Task("program", process, log, log)
    try:
        task.wait_for("waiting")
        task.kill(signal.SIGTERM)
        clusters.wait([task], timeout=60)
    finally:
        task.kill()
        process.wait()
    assert task.code == 75
    assert "ended by SIGTERM" in task.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_two_workers_of_ones_own_program(tmp_path, number):
    """One gets a signal: both save; or the other one names it. 75 asks for a start."""
    model_dir = tmp_path / "run"
    command = [OWN_MAIN, "trains_and_evaluates", str(model_dir), "1000000"]
    killed = number == signal.SIGKILL

    def start(command, environ, log):
        # Who answers a signal does so from the start of Python on.
        answers = log.name == "worker-1.log" and not killed
        return (clusters.anew if answers else processes.Program)(command, environ, log)

    with clusters.started(command, tmp_path, start=start) as tasks:
        tasks[0].wait_for("train | step 200 ")
        tasks[1].kill(number)
        clusters.wait(tasks, timeout=90)
    assert [task.code for task in tasks] == [75, -9 if killed else 75]
    expected = "worker 1 of the cluster is lost" if killed else "was saved: the same"
    assert expected in tasks[0].text
    assert "Traceback" not in tasks[0].text
    assert "after train" not in tasks[0].text
    assert fakes.checkpoint_steps(model_dir)[-1] >= (100 if killed else 200)
