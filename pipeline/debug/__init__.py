# SPDX-License-Identifier: Apache-2.0
"""Tools for programs that are not right yet: inspections, short runs, replays of bad batches."""

from .find_learning_rate import find_learning_rate as find_learning_rate
from .inspect import inspect as inspect
from .overfit_batches import overfit_batches as overfit_batches
from .replay import replay as replay
from .tpu_dry_run import tpu_dry_run as tpu_dry_run
