# SPDX-License-Identifier: Apache-2.0
"""model_fns, networks and learning rate schedules, configurable by gin.

    Estimator.model_fn = @classifier
    Estimator.modules = {'network': @cnn, 'optimizer': @Adam}
    cnn.filters = (16, 32)

Networks take no input shape: their layers are built by the first call.
"""

from .class_heads import AccuracyBaseline as AccuracyBaseline
from .class_heads import BinaryClassHead as BinaryClassHead
from .class_heads import MultiClassHead as MultiClassHead
from .class_heads import MultiLabelHead as MultiLabelHead
from .classifier import classifier as classifier
from .dcgan import dcgan_discriminator as dcgan_discriminator
from .dcgan import dcgan_generator as dcgan_generator
from .dcgan import gaussian_noise as gaussian_noise
from .embedding import Embedding as Embedding
from .embedding import ShardedEmbedding as ShardedEmbedding
from .example_gradients import clipped_mean_gradients as clipped_mean_gradients
from .example_gradients import gradient_noise as gradient_noise
from .example_gradients import per_example_gradients as per_example_gradients
from .gan import gan as gan
from .keras_models import keras_model_fn as keras_model_fn
from .keras_models import model_to_estimator as model_to_estimator
from .language_model import language_model as language_model
from .multi_head import MultiHead as MultiHead
from .networks import cnn as cnn
from .networks import linear as linear
from .networks import mlp as mlp
from .regression_heads import LogisticRegressionHead as LogisticRegressionHead
from .regression_heads import PoissonRegressionHead as PoissonRegressionHead
from .regression_heads import RegressionHead as RegressionHead
from .regressor import regressor as regressor
from .schedules import piecewise_by_epoch as piecewise_by_epoch
from .schedules import warmup_cosine as warmup_cosine
from .tables import dcn_v2 as dcn_v2
from .tables import deep_fm as deep_fm
from .tables import dlrm as dlrm
from .tables import dnn as dnn
from .tables import input_layer as input_layer
from .tables import table_model as table_model
from .tables import wide_and_deep as wide_and_deep
from .transformer import transformer_lm as transformer_lm
