"""Pictures, texts, distributions and curves for `EstimatorSpec.summaries`."""

from .contract.summaries import confusion_matrix as confusion_matrix
from .contract.summaries import histogram as histogram
from .contract.summaries import image as image
from .contract.summaries import pr_curve as pr_curve
from .contract.summaries import text as text
