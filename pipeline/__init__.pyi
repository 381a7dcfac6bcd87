# SPDX-License-Identifier: Apache-2.0
"""The public names, one an import; `__init__.py` reads them and imports each at its first use."""

from . import debug as debug
from . import errors as errors
from . import hooks as hooks
from . import keras_fit as keras_fit
from . import summary as summary
from . import writers as writers
from .contract.current_config import current_config as current_config
from .contract.hooks import Hook as Hook
from .contract.hooks import MetricWriter as MetricWriter
from .contract.hooks import Report as Report
from .contract.hooks import RunContext as RunContext
from .contract.hooks import SavingListener as SavingListener
from .contract.run_config import RunConfig as RunConfig
from .contract.spec import EstimatorSpec as EstimatorSpec
from .contract.spec import ModeKeys as ModeKeys
from .contract.spec import metric as metric
from .contract.spec import numpy_metric as numpy_metric
from .contract.train_op import MeanOverExamples as MeanOverExamples
from .contract.train_op import TrainOp as TrainOp
from .contract.weight_averages import ExponentialAverage as ExponentialAverage
from .contract.weight_averages import StochasticWeightAverage as StochasticWeightAverage
from .debug.fast_dev_run import fast_dev_run as fast_dev_run
from .distribute.strategies import central_storage as central_storage
from .distribute.strategies import mirrored as mirrored
from .distribute.strategies import multi_worker as multi_worker
from .distribute.strategies import one_device as one_device
from .distribute.tables import EmbeddingTable as EmbeddingTable
from .distribute.tpu import tpu as tpu
from .errors import CheckpointMismatchError as CheckpointMismatchError
from .errors import CorruptCheckpointError as CorruptCheckpointError
from .errors import ModelDirInUseError as ModelDirInUseError
from .errors import NanLossDuringTrainingError as NanLossDuringTrainingError
from .errors import PreemptedError as PreemptedError
from .errors import TaskLostError as TaskLostError
from .errors import UserError as UserError
from .estimator.estimator import Estimator as Estimator
from .estimator.estimator import train_and_evaluate as train_and_evaluate
from .estimator.execution import connect as connect
from .export.exporters import BestExporter as BestExporter
from .export.exporters import FinalExporter as FinalExporter
from .export.exporters import LatestExporter as LatestExporter
from .export.receivers import ServingInputReceiver as ServingInputReceiver
from .export.receivers import (
    build_parsing_serving_input_receiver_fn as build_parsing_serving_input_receiver_fn,
)
from .export.receivers import (
    build_raw_serving_input_receiver_fn as build_raw_serving_input_receiver_fn,
)
from .hooks.logging_hook import LoggingHook as LoggingHook
from .hooks.profiler import ProfilerHook as ProfilerHook
from .hooks.reduce_on_plateau import ReduceOnPlateau as ReduceOnPlateau
from .hooks.summary_hook import SummaryHook as SummaryHook
from .keras_fit.fit import fit as fit
from .keras_fit.result import FitResult as FitResult
from .loop.early_stopping import EarlyStopping as EarlyStopping
from .loop.exporter import Exporter as Exporter
from .loop.specs import EvalSpec as EvalSpec
from .loop.specs import KeepBest as KeepBest
from .loop.specs import TrainSpec as TrainSpec
from .run.run import run as run
from .servers.parameter_server import parameter_server as parameter_server
from .train.trainable_variables import trainable_variables as trainable_variables
from .warm_start.settings import WarmStartSettings as WarmStartSettings
from .warm_start.vocabulary import VocabInfo as VocabInfo

__version__: str
