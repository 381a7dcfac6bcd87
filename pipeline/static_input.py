"""What a TPU asks of its input: every shape fixed, and no type that lives on hosts."""

from typing import Any

import tensorflow as tf

from pipeline.checks import components

_HOST_ONLY = (tf.string, tf.variant, tf.resource)


def check(element_spec: Any, *, input_fn: str, mode: str) -> None:
    """Raises for what a TPU cannot be fed with.

    Args:
      element_spec: `(features, labels)` specs of one replica's batch.
      input_fn: the name of where they come from.
      mode: that it was called in.

    Raises:
      ValueError: names the component and what to write.
    """
    for name, spec in components(element_spec):
        what = f"input_fn {input_fn} yields in mode {mode!r} {name}"
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(_not_dense(what, spec))
        if spec.dtype in _HOST_ONLY:
            raise ValueError(
                f"{what} of type tf.{spec.dtype.name}, and a TPU computes with numbers "
                "only: map it to ids in input_fn, dataset.map(lambda x: "
                "tf.strings.to_hash_bucket_fast(x, 1000)) or a StringLookup layer, or "
                "leave it out there."
            )
        if not spec.shape.is_fully_defined():
            raise ValueError(_not_static(what, spec.shape))


def _not_dense(what: str, spec: Any) -> str:
    if isinstance(spec, tf.RaggedTensorSpec):
        return (
            f"{what} as a ragged tensor, whose rows have no fixed length: make it "
            "dense in input_fn, "
            "dataset.map(lambda x: x.to_tensor(shape=[BATCH, LENGTH]))."
        )
    if isinstance(spec, tf.SparseTensorSpec):
        return (
            f"{what} as a sparse tensor, whose number of values is not fixed: make it "
            "dense in input_fn, dataset.map(tf.sparse.to_dense)."
        )
    return f"{what} as {spec}: a TPU takes dense tensors only."


def _not_static(what: str, shape: tf.TensorShape) -> str:
    dims = "[...]" if shape.rank is None else shape.as_list()
    text = f"{what} of shape {dims}, and a TPU's program is compiled for one shape: "
    if shape.rank is None:
        return text + "give it one in input_fn, tf.ensure_shape(x, [...])."
    unknown = [i for i, size in enumerate(shape.as_list()) if size is None]
    if unknown == [0]:
        return text + (
            "write dataset.batch(BATCH, drop_remainder=True) in input_fn; those of "
            "inputs/ take drop_remainder=True as an argument."
        )
    dims = ", ".join(str(i) for i in unknown)
    return text + (
        f"of dimension {dims} it does not know the size. Pad to a fixed length, "
        "dataset.padded_batch(BATCH, padded_shapes=[LENGTH], drop_remainder=True), or "
        "say what it is, tf.ensure_shape(x, [...])."
    )
