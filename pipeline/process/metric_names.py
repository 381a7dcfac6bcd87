"""Tells by a metric's name whether more is better, where everybody means the same.

Needs neither TensorFlow nor a value of the metric.
"""

import re

_HIGHER = (
    "accuracy acc auc precision recall f1 fbeta specificity sensitivity iou dice bleu "
    "rouge meteor r2 psnr ssim ndcg mrr map hits correlation score reward return "
    "likelihood elbo"
)
_LOWER = (
    "loss error err mse mae rmse mape msle crossentropy entropy perplexity ppl wer cer "
    "ter fid kid distance divergence nll regret"
)
# `neg_mean_squared_error` is better the higher it is, `negative_log_likelihood` not.
_TURNED = {"neg", "negative", "minus", "inverse"}


def higher_is_better(metric: str) -> bool | None:
    """Returns whether more of a metric is better; None where its name does not tell.

    Args:
      metric: name of the metric, such as "ema/top_5_accuracy" or "valMSE".
    """
    words = {
        word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", metric)
    }
    higher, lower = (not words.isdisjoint(w.split()) for w in (_HIGHER, _LOWER))
    return None if higher == lower or words & _TURNED else higher
