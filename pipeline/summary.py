# SPDX-License-Identifier: Apache-2.0
"""Pictures, texts, distributions and curves for `EstimatorSpec.summaries`."""

from .hooks.summaries import confusion_matrix as confusion_matrix
from .hooks.summaries import histogram as histogram
from .hooks.summaries import image as image
from .hooks.summaries import pr_curve as pr_curve
from .hooks.summaries import text as text
