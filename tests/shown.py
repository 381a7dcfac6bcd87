"""A model_fn whose summaries are of its data alone, what they are, and what is read.

estimator = fakes.make_estimator(model_dir, model_fn=shown.model_fn)
estimator.train(fakes.make_input_fn(x, y, batch_size=30), max_steps=10)
assert shown.read(model_dir)["worst"][10] == shown.expected(x[270:300], y)["worst"]
"""

import dataclasses

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pipeline as ge
from tests import fakes

NUM_IMAGES, NUM_WORST, NUM_TEXTS, NUM_THRESHOLDS = 3, 5, 10, 11
_NAMES = "classes", "values", "kernel", "curve", "first", "worst", "texts", "largest"


def pixels(x):
    """Pictures of 2x3 pixels, uint8 `[rows, 2, 3, 1]`, of tensors or arrays."""
    x = tf.clip_by_value(tf.round(x * 32 + 128), 0, 255)
    return tf.reshape(tf.cast(x, tf.uint8), [-1, 2, 3, 1])


def model_fn(features, labels, mode, network, optimizer, params):
    """Classifies, and shows its data; `params` may hold `on_shown`, called at each."""
    spec = fakes.classifier_fn(features, labels, mode, network, optimizer, params)
    if mode == ge.ModeKeys.PREDICT:
        return spec
    guesses = tf.argmax(features[:, : fakes.NUM_CLASSES], 1)
    if on_shown := params.get("on_shown"):
        # Not stateful: TensorFlow leaves it out where nobody uses what it returns.
        guesses = tf.ensure_shape(
            tf.numpy_function(on_shown, [guesses], tf.int64, stateful=False), [None]
        )
    summaries = {
        "classes": ge.confusion_matrix(labels, guesses, fakes.NUM_CLASSES),
        "values": ge.histogram(features),
        "kernel": ge.histogram(network.layers[0].kernel),
        "curve": ge.pr_curve(
            labels == 1, tf.clip_by_value(features[:, 0], 0, 1), NUM_THRESHOLDS
        ),
        "first": ge.image(pixels(features), NUM_IMAGES),
        "worst": ge.image(pixels(features), NUM_WORST, highest=features[:, 0]),
    }
    if not params.get("no_text"):
        summaries["texts"] = ge.text(tf.strings.as_string(labels), NUM_TEXTS)
    return dataclasses.replace(spec, eval_metric_ops=None, summaries=summaries)


def expected(x, y):
    """The summaries of rows, but for the kernel's, as `read` returns them.

    Args:
      x: features of the rows.
      y: labels of the rows.
    """
    matrix = np.zeros([fakes.NUM_CLASSES] * 2, int)
    np.add.at(matrix, (y, x[:, : fakes.NUM_CLASSES].argmax(1)), 1)
    at_least = np.clip(x[:, 0], 0, 1)[:, None] >= np.linspace(0, 1, NUM_THRESHOLDS)
    pictures = pixels(x).numpy()
    return {
        "classes": matrix.tolist(),
        "values": x.size,
        "curve": [
            (at_least & is_it[:, None]).sum(0).tolist() for is_it in (y == 1, y != 1)
        ],
        "first": pictures[:NUM_IMAGES].tolist(),
        "worst": pictures[np.argsort(-x[:, 0], kind="stable")[:NUM_WORST]].tolist(),
        "texts": [str(label) for label in y[:NUM_TEXTS]],
    }


def read(folder):
    """What a folder's events show, as JSON by name and step."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    found = {}
    # Beside what the driver writes itself, such as the parameters.
    tags = [tag for tag in events.Tags()["tensors"] if tag.split("/")[0] in _NAMES]
    for tag in tags:
        plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
        if tag == "parameters" or plugin == "hparams":
            continue  # They say what the run is.
        by_step = {e.step: _shown(tag, plugin, e) for e in events.Tensors(tag)}
        found[tag.removesuffix("/table")] = by_step
    return found


def norms(folder):
    """The norms of gradients and updates that a folder's events show, by name."""
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "_norm/" in tag]
    return {tag: [point.value for point in events.Scalars(tag)] for tag in tags}


def _shown(tag, plugin, event):
    value = tf.make_ndarray(event.tensor_proto)
    if plugin == "images":
        return [tf.io.decode_png(picture).numpy().tolist() for picture in value[2:]]
    if tag.endswith("/table"):
        rows = value[0].decode().splitlines()[2:]
        return [[int(cell) for cell in row.split("|")[2:-2]] for row in rows]
    if plugin == "text":
        return [each.decode() for each in value]
    if plugin == "histograms":
        return int(value[:, 2].sum())
    return value[:2].astype(int).tolist()
