"""Small models of TensorFlow 1, which run by v1 and by TensorFlow 2.15 with tf_slim.

`t` is tensorflow.compat.v1 or gin_estimator.v1, `slim` its tf.contrib.slim. The variables begin
with numbers that follow from their names, so that a wrong name is a wrong number.
"""

import zlib

import numpy as np

STEPS, BATCH = 3, 8
rng = np.random.default_rng(5)
INPUTS = {
    "flat": rng.normal(size=[BATCH * STEPS, 4]).astype("float32"),
    "line": rng.normal(size=[BATCH * STEPS, 6, 3]).astype("float32"),
    "image": rng.normal(size=[BATCH * STEPS, 6, 6, 3]).astype("float32"),
    "cube": rng.normal(size=[BATCH * STEPS, 4, 4, 4, 2]).astype("float32"),
    "length": rng.integers(1, 7, size=[BATCH * STEPS]).astype("int32"),
}

LAYERS = {
    "dense": lambda t, f, training: t.layers.dense(f["flat"], 3, t.nn.relu),
    "dense_of_lines": lambda t, f, training: t.layers.dense(f["line"], 3, use_bias=False),
    "dense_twice": lambda t, f, training: _twice(t.layers.Dense(4, t.tanh), f["flat"]),
    "dense_reused": lambda t, f, training: (
        t.layers.dense(f["flat"], 3, name="a")
        + t.layers.dense(f["flat"] * 2, 3, name="a", reuse=True)
    ),
    "conv1d": lambda t, f, training: t.layers.conv1d(f["line"], 4, 3, padding="same"),
    "conv2d": lambda t, f, training: t.layers.conv2d(f["image"], 4, [3, 2], 2, activation=t.tanh),
    "conv2d_dilated": lambda t, f, training: t.layers.conv2d(f["image"], 4, 2, dilation_rate=2),
    "conv3d": lambda t, f, training: t.layers.conv3d(f["cube"], 3, 2, padding="same"),
    "separable_conv1d": lambda t, f, training: t.layers.separable_conv1d(f["line"], 4, 3),
    "separable_conv2d": lambda t, f, training: t.layers.separable_conv2d(
        f["image"], 4, 3, padding="same", depth_multiplier=2
    ),
    "transpose_valid": lambda t, f, training: t.layers.conv2d_transpose(f["image"], 2, 3, 2),
    "transpose_same": lambda t, f, training: t.layers.conv2d_transpose(
        f["image"], 2, [4, 3], [2, 1], padding="same", activation=t.nn.relu
    ),
    "transpose_3d": lambda t, f, training: t.layers.conv3d_transpose(f["cube"], 2, 2, 2),
    "max_pooling1d": lambda t, f, training: t.layers.max_pooling1d(f["line"], 2, 2),
    "max_pooling2d": lambda t, f, training: t.layers.max_pooling2d(f["image"], 3, 2, "same"),
    "max_pooling3d": lambda t, f, training: t.layers.max_pooling3d(f["cube"], 2, 1),
    "average_pooling1d": lambda t, f, training: t.layers.average_pooling1d(f["line"], 3, 2),
    "average_pooling2d": lambda t, f, training: t.layers.average_pooling2d(
        f["image"], [2, 3], 2, "same"
    ),
    "average_pooling3d": lambda t, f, training: t.layers.average_pooling3d(f["cube"], 2, 2),
    "flatten": lambda t, f, training: t.layers.flatten(f["image"]),
    "norm": lambda t, f, training: t.layers.batch_normalization(
        t.layers.dense(f["flat"], 3), momentum=0.5, training=training
    ),
    "norm_fused": lambda t, f, training: t.layers.batch_normalization(
        f["image"], momentum=0.7, training=training
    ),
    "norm_not_fused": lambda t, f, training: t.layers.batch_normalization(
        f["image"], fused=False, scale=False, training=training
    ),
    "norm_of_channels_first": lambda t, f, training: t.layers.batch_normalization(
        f["image"], axis=1, fused=False, training=training
    ),
    "norm_frozen": lambda t, f, training: t.layers.batch_normalization(f["image"]),
    "norm_untrained": lambda t, f, training: t.layers.batch_normalization(
        f["flat"], trainable=False, training=training
    ),
}


def _twice(layer, x):
    return layer(layer(x))


def _arg_scope(slim, f, training):
    scope = slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        normalizer_fn=slim.batch_norm,
        normalizer_params={"is_training": training, "decay": 0.9},
    )
    with scope as defaults:
        x = slim.conv2d(f["image"], 4, 3, scope="first")
        with slim.arg_scope([slim.conv2d], activation_fn=None, padding="VALID"):
            x = slim.repeat(x, 2, slim.conv2d, 3, 2, scope="more")
    with slim.arg_scope(defaults):
        return slim.fully_connected(slim.flatten(x), 3, scope="last")


CONTRIB = {
    "fully_connected": lambda slim, f, training: slim.fully_connected(f["flat"], 3),
    "linear": lambda slim, f, training: slim.fully_connected(f["line"], 3, activation_fn=None),
    "conv2d": lambda slim, f, training: slim.conv2d(f["image"], 4, [3, 3], stride=2),
    "conv2d_rate": lambda slim, f, training: slim.conv2d(f["image"], 4, 3, rate=2, scope="c"),
    "conv1d": lambda slim, f, training: slim.convolution1d(f["line"], 4, 3),
    "conv2d_transpose": lambda slim, f, training: slim.conv2d_transpose(f["image"], 2, 3, 2),
    "separable": lambda slim, f, training: slim.separable_conv2d(
        f["image"], 4, 3, depth_multiplier=1
    ),
    "depthwise": lambda slim, f, training: slim.separable_conv2d(
        f["image"], None, 3, depth_multiplier=2, normalizer_fn=slim.batch_norm
    ),
    "batch_norm": lambda slim, f, training: slim.batch_norm(
        f["image"], decay=0.8, scale=True, is_training=training
    ),
    "batch_norm_of_rows": lambda slim, f, training: slim.batch_norm(
        f["flat"], is_training=training, activation_fn=abs
    ),
    "batch_norm_at_once": lambda slim, f, training: slim.batch_norm(
        f["flat"], decay=0.8, updates_collections=None, is_training=training
    ),
    "layer_norm": lambda slim, f, training: slim.layer_norm(f["line"]),
    "layer_norm_last": lambda slim, f, training: slim.layer_norm(
        f["line"], begin_norm_axis=-1, begin_params_axis=-1
    ),
    "pools": lambda slim, f, training: slim.avg_pool2d(slim.max_pool2d(f["image"], 2), 2, 1),
    "stack": lambda slim, f, training: slim.stack(
        f["flat"], slim.fully_connected, [5, 3], scope="fc"
    ),
    "bias_add": lambda slim, f, training: slim.bias_add(f["flat"]),
    "unit_norm": lambda slim, f, training: slim.unit_norm(f["flat"], 1),
    "arg_scope": _arg_scope,
    "dropout": lambda slim, f, training: slim.dropout(f["flat"], 0.5, is_training=False),
    "one_hot": lambda slim, f, training: slim.one_hot_encoding(f["length"], 8),
}


def _run(t, cell, f, **options):
    outputs, state = t.nn.dynamic_rnn(cell, f["line"], f["length"], dtype=t.float32, **options)
    return _joined(t, outputs, state)


def _joined(t, outputs, *state):
    """Returns outputs `[batch, time, units]` and states as `[batch, numbers]`."""
    parts = [t.nest.flatten(each) for each in (outputs, state)]
    return t.concat([t.layers.flatten(each) for part in parts for each in part], 1)


def _bidirectional(t, f):
    cells = [t.nn.rnn_cell.GRUCell(3), t.nn.rnn_cell.LSTMCell(2)]
    outputs, states = t.nn.bidirectional_dynamic_rnn(
        *cells, f["line"], f["length"], dtype="float32"
    )
    return _joined(t, outputs, states)


def _static(t, f):
    rows = t.unstack(f["line"], axis=1)
    outputs, state = t.nn.static_rnn(t.nn.rnn_cell.BasicLSTMCell(3), rows, dtype=t.float32)
    return _joined(t, outputs, state)


def _static_bidirectional(t, f):
    rows = t.unstack(f["line"], axis=1)
    cells = [t.nn.rnn_cell.BasicRNNCell(3), t.nn.rnn_cell.GRUCell(2)]
    return _joined(t, *t.nn.static_bidirectional_rnn(*cells, rows, dtype=t.float32))


def _stacked(t, f):
    cells = [
        t.nn.rnn_cell.DropoutWrapper(t.nn.rnn_cell.LSTMCell(3), output_keep_prob=1.0),
        t.nn.rnn_cell.ResidualWrapper(t.nn.rnn_cell.GRUCell(3)),
        t.nn.rnn_cell.DeviceWrapper(t.nn.rnn_cell.BasicRNNCell(2), "/cpu:0"),
    ]
    return _run(t, t.nn.rnn_cell.MultiRNNCell(cells), f)


def _own_loop(t, f):
    cell = t.nn.rnn_cell.LSTMCell(3, name="own")
    state = cell.zero_state(BATCH, t.float32)
    for i in range(2):
        output, state = cell(f["line"][:, i], state)
    return _joined(t, output, state)


RNN = {
    "basic": lambda t, f, training: _run(t, t.nn.rnn_cell.BasicRNNCell(3), f),
    "gru": lambda t, f, training: _run(t, t.nn.rnn_cell.GRUCell(3), f),
    "gru_relu": lambda t, f, training: _run(t, t.nn.rnn_cell.GRUCell(3, t.nn.relu), f),
    "basic_lstm": lambda t, f, training: _run(t, t.nn.rnn_cell.BasicLSTMCell(3, 0.5), f),
    "lstm": lambda t, f, training: _run(t, t.nn.rnn_cell.LSTMCell(3), f),
    "lstm_full": lambda t, f, training: _run(
        t,
        t.nn.rnn_cell.LSTMCell(4, use_peepholes=True, cell_clip=0.3, num_proj=3, proj_clip=0.2),
        f,
        scope="named",
    ),
    "stacked": lambda t, f, training: _stacked(t, f),
    "bidirectional": lambda t, f, training: _bidirectional(t, f),
    "static": lambda t, f, training: _static(t, f),
    "static_bidirectional": lambda t, f, training: _static_bidirectional(t, f),
    "own_loop": lambda t, f, training: _own_loop(t, f),
}
GROUPS = {"layers": LAYERS, "contrib": CONTRIB, "rnn": RNN}


def model(t, slim, group, features, training):
    """Returns the loss, and the output of each case as `[batch, numbers]`."""
    outputs = {}
    with t.variable_creator_scope(with_fixed_value(t)):
        for name, case in GROUPS[group].items():
            with t.variable_scope(name):
                module = slim if group == "contrib" else t
                output = case(module, features, training)
                outputs[name] = t.cast(t.reshape(output, [BATCH, -1]), t.float32)
    losses = [t.reduce_mean(t.square(each - 0.1)) for each in outputs.values()]
    return t.add_n(losses), outputs


def with_fixed_value(t):
    """Returns a creator of variables that begin with numbers of their names and sizes."""

    def create(next_creator, **options):
        first, name = options["initial_value"], options["name"]

        def value():
            shape = (first() if callable(first) else t.convert_to_tensor(first)).shape.as_list()
            return t.constant(fixed(name, shape))

        if "step" in name:
            return next_creator(**options)
        return next_creator(**{**options, "initial_value": value})

    return create


def fixed(name, shape):
    """Returns numbers between -0.4 and 0.4 for a variable; above 1 for a variance."""
    seed = zlib.crc32(name.encode())
    numbers = np.random.default_rng(seed).uniform(-0.4, 0.4, size=shape).astype("float32")
    return 1 + abs(numbers) if name.endswith("variance") else numbers


def shortened(value):
    """Returns the shape, the mean, and at most five numbers of an array."""
    value = np.asarray(value, "float64")
    some = value.ravel()[:: max(1, value.size // 5)][:5]
    return {"shape": list(value.shape), "numbers": [float(n) for n in (value.mean(), *some)]}
