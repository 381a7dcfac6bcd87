"""Records outputs and trained variables of layers and cells for tests/v1/layers_test.py.

python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1 tf_slim
VENV/bin/python tests/recorders/v1_layers.py tests/v1/layers.json
"""

import json
import pathlib
import sys

import keras.src.legacy_tf_layers.normalization
import tensorflow as tf2
import tensorflow.compat.v1 as tf
import tf_slim as slim
from tensorflow.python.framework import ops

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "v1"))
import cases  # noqa: E402

# tf_slim asks for tf_keras, which is Keras 2, and for a name that has moved.
ops.Tensor = tf.Tensor
sys.modules |= {
    "tf_keras": keras,
    "tf_keras.legacy_tf_layers": keras.src.legacy_tf_layers,
    "tf_keras.legacy_tf_layers.normalization": keras.src.legacy_tf_layers.normalization,
}


class Tf:
    """tensorflow.compat.v1 with tf.nest."""

    nest = tf2.nest
    variable_creator_scope = staticmethod(tf2.variable_creator_scope)

    def __getattr__(self, name):
        return getattr(tf, name)


def recorded(group):
    """Returns losses of training, outputs of a batch afterwards, and the variables."""
    t = Tf()
    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.data.Dataset.from_tensor_slices(cases.INPUTS).batch(cases.BATCH)
        features = tf.data.make_one_shot_iterator(data).get_next()
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            loss, _ = cases.model(t, slim, group, features, True)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            update = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        losses = [float(session.run([loss, update])[0]) for _ in range(cases.STEPS)]
        values = {v.op.name: cases.shortened(session.run(v)) for v in tf.global_variables()}
        path = saver.save(session, f"/tmp/v1_layers_{group}")
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.constant(x[: cases.BATCH]) for name, x in cases.INPUTS.items()}
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            _, outputs = cases.model(t, slim, group, features, False)
        tf.train.Saver().restore(session, path)
        outputs = {name: cases.shortened(x) for name, x in session.run(outputs).items()}
    return {"losses": losses, "variables": values, "outputs": outputs}


tf.disable_v2_behavior()
found = {group: recorded(group) for group in cases.GROUPS}
pathlib.Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
