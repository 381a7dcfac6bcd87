"""The public names and their modules; `__init__.py` imports a name at its first use."""

from .checkpoint.vocabulary import VocabInfo as VocabInfo
from .checkpoint.warm_start_settings import WarmStartSettings as WarmStartSettings
from .contract.averages import ExponentialAverage as ExponentialAverage
from .contract.averages import StochasticWeightAverage as StochasticWeightAverage
from .contract.compiled import CompileParts as CompileParts
from .contract.compiled import compile_parts as compile_parts
from .contract.compiled import compiled_spec as compiled_spec
from .contract.current import current_config as current_config
from .contract.hooks import Hook as Hook
from .contract.hooks import MetricWriter as MetricWriter
from .contract.hooks import Report as Report
from .contract.hooks import Run as Run
from .contract.hooks import SavingListener as SavingListener
from .contract.run_config import RunConfig as RunConfig
from .contract.spec import EstimatorSpec as EstimatorSpec
from .contract.spec import ModeKeys as ModeKeys
from .contract.spec import host_metric as host_metric
from .contract.spec import metric as metric
from .contract.train_op import MeanOverExamples as MeanOverExamples
from .contract.train_op import TrainOp as TrainOp
from .debug.replay import replay as replay
from .distribute.strategies import central_storage as central_storage
from .distribute.strategies import mirrored as mirrored
from .distribute.strategies import multi_worker as multi_worker
from .distribute.strategies import one_device as one_device
from .distribute.strategies import parameter_server as parameter_server
from .distribute.strategies import single_host as single_host
from .distribute.strategies import tpu as tpu
from .distribute.tables import EmbeddingTable as EmbeddingTable
from .errors import CheckpointMismatchError as CheckpointMismatchError
from .errors import ClaimedError as ClaimedError
from .errors import PeerLostError as PeerLostError
from .errors import PreemptedError as PreemptedError
from .errors import Refusal as Refusal
from .errors import RefusedTypeError as RefusedTypeError
from .errors import RefusedValueError as RefusedValueError
from .errors import SpecError as SpecError
from .errors import StepError as StepError
from .errors import StorageError as StorageError
from .errors import UnreadableCheckpointError as UnreadableCheckpointError
from .errors import UserError as UserError
from .errors import UserRuntimeError as UserRuntimeError
from .errors import UserTypeError as UserTypeError
from .errors import UserValueError as UserValueError
from .estimator.estimator import Estimator as Estimator
from .estimator.estimator import train_and_evaluate as train_and_evaluate
from .estimator.specs import EvalSpec as EvalSpec
from .estimator.specs import KeepBest as KeepBest
from .estimator.specs import TrainSpec as TrainSpec
from .export.exporters import BestExporter as BestExporter
from .export.exporters import Exporter as Exporter
from .export.exporters import FinalExporter as FinalExporter
from .export.exporters import LatestExporter as LatestExporter
from .export.receivers import ServingInputReceiver as ServingInputReceiver
from .export.receivers import (
    build_parsing_serving_input_receiver_fn as build_parsing_serving_input_receiver_fn,
)
from .export.receivers import (
    build_raw_serving_input_receiver_fn as build_raw_serving_input_receiver_fn,
)
from .hooks.file_writers import CsvWriter as CsvWriter
from .hooks.file_writers import JsonLinesWriter as JsonLinesWriter
from .hooks.loss_guard import LossGuard as LossGuard
from .hooks.plateau import ReduceOnPlateau as ReduceOnPlateau
from .hooks.profiler import ProfilerHook as ProfilerHook
from .hooks.rules import StopIfDiverged as StopIfDiverged
from .hooks.rules import StopIfHigher as StopIfHigher
from .hooks.rules import StopIfLower as StopIfLower
from .hooks.rules import StopIfNoDecrease as StopIfNoDecrease
from .hooks.rules import StopIfNoIncrease as StopIfNoIncrease
from .hooks.stock import LoggingHook as LoggingHook
from .hooks.stock import NanHook as NanHook
from .hooks.stock import NanLossDuringTrainingError as NanLossDuringTrainingError
from .hooks.stops import PreemptionHook as PreemptionHook
from .hooks.stops import StopAfterEpochsHook as StopAfterEpochsHook
from .hooks.stops import StopAfterSecsHook as StopAfterSecsHook
from .hooks.stops import StopAtStepHook as StopAtStepHook
from .hooks.summary import StepCounterHook as StepCounterHook
from .hooks.summary import SummaryHook as SummaryHook
from .hooks.tensors import TensorHook as TensorHook
from .hooks.trackers import MlflowWriter as MlflowWriter
from .hooks.trackers import WandbWriter as WandbWriter
from .run.run import run as run
from .train.unfrozen import unfrozen as unfrozen
