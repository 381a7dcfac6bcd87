"""The one place of pipeline that uses TensorFlow's private API for coordination.

Where it fails after an upgrade: TensorFlow has moved or renamed
`Context.configure_coordination_service`; look how MultiWorkerMirroredStrategy calls it.
"""

from tests import forked

CODE = """
import tensorflow as tf
from tensorflow.python.eager import context
from pipeline.strategy import coordination

spec = tf.train.ClusterSpec({"chief": ["localhost:1"], "worker": ["a:1", "b:1"]})
coordination.set_heartbeat_timeout(spec, 3.5)
config = context.context().coordination_service
assert config.heartbeat_timeout_in_ms == 3500, config
assert config.service_leader == "/job:chief/replica:0/task:0", config
jobs = [(job.name, job.num_tasks) for job in config.coordinated_job_list]
assert jobs == [("chief", 1), ("worker", 2)], jobs
"""


def test_the_heartbeat_is_set(tmp_path):
    """In a process of its own: it is meant for one that has not run TensorFlow."""
    (tmp_path / "program.py").write_text(CODE)
    code, log = forked.finished([str(tmp_path / "program.py")], tmp_path)
    assert code == 0, log[-2000:]


# Makes a tensor before the workers are connected.
TOO_LATE = """
import json, os, socket
import pipeline as ge
import tensorflow as tf
from pipeline.strategy import strategies

with socket.socket() as taken:
    taken.bind(("localhost", 0))
    address = f"localhost:{taken.getsockname()[1]}"
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
)
tf.constant(1.0)
ge.run(lambda: strategies.create(ge.RunConfig(execution="multi_worker")))
"""


def test_a_program_that_computes_before_it_trains_is_told(tmp_path):
    (tmp_path / "program.py").write_text(TOO_LATE)
    code, log = forked.finished([str(tmp_path / "program.py")], tmp_path)
    assert code == 2, log[-2000:]
    assert "move what makes tensors, datasets or Keras layers into input_fn" in log
    assert "Traceback" not in log
