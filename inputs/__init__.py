"""input_fns, configured by gin: the source of the examples.

An input_fn takes the mode and the `tf.distribute.InputContext` of its pipeline. It
returns per-replica batches of `features` or `(features, labels)`. In a gin file:

    import inputs

    TrainSpec.input_fn = @tfds_input_fn
    EvalSpec.input_fn = @tfds_input_fn
    tfds_input_fn.name = 'mnist'
    tfds_input_fn.preprocess = @scale_image
    tfds_input_fn.batch_size = 64

The same in Python:

    dataset = inputs.tfds_input_fn(
        ModeKeys.TRAIN, name='mnist', preprocess=inputs.scale_image, batch_size=64)

TRAIN shuffles and repeats forever. EVAL and PREDICT make one pass in order and drop
nothing. All pipelines together see each example of a pass once. Every position can be
saved.
"""

from .batching import Batching, make_batching
from .columns import Column
from .csv_input import csv_input_fn
from .dataframe_input import dataframe_input_fn
from .digits import digits_input_fn, load_digits
from .flights import flights_frame
from .numpy_input import array_dataset, constant_arrays, numpy_input_fn
from .preprocess import scale_image
from .schema import Bag, Category, Cross, Number, Schema
from .text_input import standard_library, text_input_fn
from .tfds_input import tfds_input_fn
from .tfrecord_input import tfrecord_input_fn

__all__ = [
    "Bag",
    "Batching",
    "Category",
    "Column",
    "Cross",
    "Number",
    "Schema",
    "array_dataset",
    "constant_arrays",
    "csv_input_fn",
    "dataframe_input_fn",
    "digits_input_fn",
    "flights_frame",
    "load_digits",
    "make_batching",
    "numpy_input_fn",
    "scale_image",
    "standard_library",
    "text_input_fn",
    "tfds_input_fn",
    "tfrecord_input_fn",
]
