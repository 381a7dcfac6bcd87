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
