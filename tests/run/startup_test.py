"""TensorFlow's lines at its start: known ones are dropped, all others are passed on."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

LEVELS = ("TF_CPP_MIN_LOG_LEVEL", "GIN_ESTIMATOR_SET_LOG_LEVEL")
WITHOUT = {name: value for name, value in os.environ.items() if name not in LEVELS}
KNOWN = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795838777.95 27767 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with
"""
if not os.path.exists("/dev/nvidia0"):  # With a GPU these are of interest.
    KNOWN += """\
I0000 00:00:1795838777.95 27767 cudart_stub.cc:31] Could not find cuda drivers on your machine
E0000 00:00:1795838784.97 27767 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error
"""
PROGRAM = f"""
import faulthandler, os, signal, sys
from gin_estimator.run import startup
import gin_estimator
faulthandler.enable()
os.write(2, b"before\\n")
with startup.quiet():
    os.write(2, b"one\\n" + {KNOWN.encode()!r})
    print("two", file=sys.stderr)
    os.write(2, {KNOWN.encode()!r} + b"no end of line")
    END
os.write(2, b" after\\n")
"""


def run(program, cwd=ROOT, environment=WITHOUT):
    return subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [
        ("pass", 0, " after\n"),
        ("os._exit(3)", 3, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.abort()", -signal.SIGABRT, "Fatal Python error: Aborted"),
        ("raise OSError('an error')", 1, "OSError: an error\n"),
    ],
)
def test_no_other_line_is_lost(end, code, text):
    done = run(PROGRAM.replace("END", end))
    assert done.returncode == code
    assert done.stderr.startswith("before\none\ntwo\nno end of line")
    assert text in done.stderr and "cpu_feature" not in done.stderr


def test_a_level_of_the_user_shows_all():
    """Also in a child process of one where the driver has set a level."""
    own = {**WITHOUT, "TF_CPP_MIN_LOG_LEVEL": "1"}
    for environment in (own, {**WITHOUT, **dict(zip(LEVELS, "01", strict=True))}):
        done = run(PROGRAM.replace("END", "pass"), environment=environment)
        assert done.stderr == f"before\none\n{KNOWN}two\n{KNOWN}no end of line after\n"


@pytest.mark.parametrize("importer", ["gin_estimator", "tensorflow", "other"])
def test_whoever_imports_tensorflow_first(importer, tmp_path):
    """Also in a process that inherits the level from the driver."""
    (tmp_path / "tensorflow.py").write_text(
        f"import os\nos.write(2, {KNOWN.encode()!r} + b'other\\n')\n__version__ = '2'"
    )
    (tmp_path / "other.py").write_text("import tensorflow")
    program = (
        f"import sys; sys.path[:1] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import gin_estimator; "
        "import IMPORTER; assert sys.modules['tensorflow'].__version__ == '2'"
    )
    if importer == "gin_estimator":  # By its first public name; this TensorFlow has no more.
        program = program.replace(
            "import IMPORTER", "exec('try: gin_estimator.Estimator\\nexcept Exception: pass')"
        )
    inherited = {**WITHOUT, "TF_CPP_MIN_LOG_LEVEL": "1", "GIN_ESTIMATOR_SET_LOG_LEVEL": "1"}
    for environment in (WITHOUT, inherited):
        done = run(program.replace("IMPORTER", importer), environment=environment)
        assert (done.stderr, done.returncode) == ("other\n", 0)


@pytest.mark.slow
@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="lines about a GPU are wanted there")
@pytest.mark.parametrize("first", ["gin_estimator", "tensorflow"])
def test_the_first_lines_are_those_of_the_program(first):
    program = (
        f"import sys, {first}\nprint('imported', file=sys.stderr)\n"
        "import gin_estimator as ge, keras, numpy as np, tensorflow as tf\n"
        "def make():\n"
        "    model = keras.Sequential([keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse')\n"
        "    return model\n"
        "ones = np.ones([4, 1], 'f')\n"
        "ge.fit(make, lambda: tf.data.Dataset.from_tensor_slices((ones, ones)).batch(2))\n"
    )
    done = run(program)
    assert done.returncode == 0, done.stderr
    shown = done.stderr.partition("imported\n")[2]
    assert "absl::" not in shown and "cuda" not in shown, shown
