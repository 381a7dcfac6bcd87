# SPDX-License-Identifier: Apache-2.0
"""input_fns, configurable by gin.

TrainSpec.input_fn = @digits_input_fn
digits_input_fn.batch_size = 64
"""

from .batching import Batching as Batching
from .batching import make_batching as make_batching
from .columns import Column as Column
from .csv_input import csv_input_fn as csv_input_fn
from .dataframe_input import dataframe_input_fn as dataframe_input_fn
from .digits import digits_input_fn as digits_input_fn
from .flights import flights_frame as flights_frame
from .numpy_input import constant_arrays as constant_arrays
from .numpy_input import numpy_input_fn as numpy_input_fn
from .preprocess import scale_image as scale_image
from .schema import Schema as Schema
from .text_input import standard_library as standard_library
from .text_input import text_input_fn as text_input_fn
from .tfds_input import tfds_input_fn as tfds_input_fn
from .tfrecord_input import tfrecord_input_fn as tfrecord_input_fn
