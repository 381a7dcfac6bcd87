"""model_fns and networks for the driver in `pipeline`, all configurable by gin.

A model_fn computes losses, metrics and predictions. A factory makes the network that it
computes with:

    from models import classifier, cnn
    from pipeline import ModeKeys

    spec = classifier(                      # one batch, eagerly, as in a unit test
        images, labels, ModeKeys.TRAIN,
        network=cnn(l2=1e-4), optimizer=keras.optimizers.Adam(),
    )
    Estimator(                              # the same, by the driver: factories
        classifier,
        modules={"network": cnn, "optimizer": keras.optimizers.Adam},
        config=RunConfig(model_dir="runs/fashion"),
    )

In gin, which supplies the factories' arguments:

    Estimator.model_fn = @classifier
    Estimator.modules = {'network': @cnn, 'optimizer': @Adam}
    classifier.label_smoothing = 0.1
    cnn.l2 = 1e-4

The modules of each model_fn:

    classifier  network (gives logits), optimizer
    regressor   network, optimizer
    gan         generator, discriminator, noise,
                generator_optimizer, discriminator_optimizer
    table_model network (of a schema), optimizer; wide_optimizer

A model_fn of one's own takes its loss, metrics and predictions from a head:

    head = BinaryClassHead(weight_column="weight")
    return head.create_estimator_spec(
        features, mode, logits, labels, optimizer, network.trainable_variables
    )

Networks take no input shape: their layers are built on the first call.
"""

from .classification_heads import BinaryClassHead, MultiClassHead, MultiLabelHead
from .classifier import classifier
from .dcgan import dcgan_discriminator, dcgan_generator, gaussian_noise
from .embedding import Embedding, ShardedEmbedding
from .example_gradients import (
    clipped_mean_gradients,
    gradient_noise,
    per_example_gradients,
)
from .gan import gan
from .head_metrics import AccuracyBaseline, Calibration, GroupAUC
from .keras_models import keras_model_fn, model_to_estimator
from .language_model import language_model
from .multi_head import MultiHead
from .networks import cnn, linear, mlp
from .ranking_heads import PairwiseRankingHead, SoftmaxRankingHead
from .regression_heads import (
    LogisticRegressionHead,
    LogNormalRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
from .regressor import regressor
from .resnet import resnet
from .schedules import piecewise_by_epoch, warmup_cosine
from .tables.dcn_v2 import dcn_v2
from .tables.deep_fm import deep_fm
from .tables.dlrm import dlrm
from .tables.dnn import dnn, wide_and_deep
from .tables.table_model import table_model
from .transformer import transformer_lm

__all__ = (
    "AccuracyBaseline",
    "BinaryClassHead",
    "Calibration",
    "Embedding",
    "GroupAUC",
    "LogNormalRegressionHead",
    "LogisticRegressionHead",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PairwiseRankingHead",
    "PoissonRegressionHead",
    "RegressionHead",
    "ShardedEmbedding",
    "SoftmaxRankingHead",
    "classifier",
    "clipped_mean_gradients",
    "cnn",
    "dcgan_discriminator",
    "dcgan_generator",
    "dcn_v2",
    "deep_fm",
    "dlrm",
    "dnn",
    "gan",
    "gaussian_noise",
    "gradient_noise",
    "keras_model_fn",
    "language_model",
    "linear",
    "mlp",
    "model_to_estimator",
    "per_example_gradients",
    "piecewise_by_epoch",
    "regressor",
    "resnet",
    "table_model",
    "transformer_lm",
    "warmup_cosine",
    "wide_and_deep",
)
