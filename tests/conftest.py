"""Every test process: four logical CPUs, no cluster, a home of its own."""

import atexit
import gc
import os
import shutil
import tempfile

# Before TensorFlow and Keras are imported, which read these once.
os.environ.pop("TF_CONFIG", None)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["HOME"] = tempfile.mkdtemp(prefix="home-of-tests-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

import gin  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import logging  # noqa: E402

from tests import longest  # noqa: E402

NUM_CPUS = 4

# TensorFlow takes this once, before it first runs, so that no test file can do it.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * NUM_CPUS,
)


def pytest_configure(config):
    # xdist would begin with the files of most tests, which are not the longest.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: longest.rank(item.path))


def pytest_collection_finish():
    """What was imported stays: no search for garbage goes through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """A test that sets TF_CONFIG does not make a cluster of the next, nor does srun."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)


@pytest.fixture
def fresh_gin():
    """gin without bindings; they and absl's verbosity, which main sets, are undone."""
    verbosity = logging.get_verbosity()
    gin.clear_config()
    yield
    gin.clear_config()
    logging.set_verbosity(verbosity)


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """The test runs in `tmp_path`, whose Python files can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def log(caplog):
    """The messages so far, of absl's level INFO on, as a function."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO", logger="absl"):
        yield lambda: [record.getMessage() for record in caplog.records]
    logging.set_verbosity(before)


@pytest.fixture(scope="session")
def mirrored_by_hand():
    """MirroredStrategy on two CPUs as a user builds it, with TensorFlow's collectives.

    One a process: the collective keys of a second one collide with the first's.
    """
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
