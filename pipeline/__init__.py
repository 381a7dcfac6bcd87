"""gin-estimator: a model_fn and an input_fn, trained on any tf.distribute strategy.

    import keras
    import pipeline as ge

    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features, training=mode == ge.ModeKeys.TRAIN)
        if mode == ge.ModeKeys.PREDICT:
            return ge.EstimatorSpec(mode, predictions={"logits": logits})
        return ge.EstimatorSpec(
            mode,
            loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
            train_op=ge.TrainOp(optimizer, network.trainable_variables),
            metrics={
                "accuracy": ge.metric(
                    keras.metrics.SparseCategoricalAccuracy, labels, logits
                )
            },
        )

    def input_fn(mode, input_context):
        images, labels = load(mode)
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        if mode == ge.ModeKeys.TRAIN:
            dataset = dataset.shuffle(10_000).repeat()
        return dataset.batch(input_context.get_per_replica_batch_size(64))

    estimator = ge.Estimator(
        model_fn,
        modules={"network": make_network, "optimizer": keras.optimizers.Adam},
        config=ge.RunConfig(model_dir="runs/mnist", save_checkpoints_steps=1000),
    )
    metrics, exports = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(input_fn, max_steps=10_000),
        ge.EvalSpec(input_fn, throttle_secs=0, exporters=[ge.FinalExporter()]),
    )

`python -m pipeline --help` shows how to do the same from gin files and flags. By
`ge.run(main)` your own program answers signals and lost workers as that command does.

Each name is imported when it is first asked for, so that a mistyped flag is answered
before TensorFlow is imported.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # For editors and type checkers, which do not run `__getattr__`.
    from pipeline.checkpoints.checkpoint import CheckpointMismatchError
    from pipeline.checkpoints.checkpoint_reader import UnreadableCheckpointError
    from pipeline.cluster.ports import PeerLostError
    from pipeline.contract.averages import (
        ExponentialAverage,
        StochasticWeightAverage,
    )
    from pipeline.contract.hooks import Hook, Report, Run, SavingListener, Tool
    from pipeline.contract.metrics import host_metric, metric
    from pipeline.contract.run_config import RunConfig
    from pipeline.contract.spec import EstimatorSpec, ModeKeys
    from pipeline.contract.summaries import (
        confusion_matrix,
        histogram,
        image,
        pr_curve,
        text,
    )
    from pipeline.contract.train_op import MeanOverExamples, SpecError, TrainOp
    from pipeline.driver.estimator import Estimator
    from pipeline.export.exporters import (
        BestExporter,
        Exporter,
        FinalExporter,
        LatestExporter,
    )
    from pipeline.export.receivers import (
        ServingInputReceiver,
        build_parsing_serving_input_receiver_fn,
        build_raw_serving_input_receiver_fn,
    )
    from pipeline.hooks.early_stopping import (
        StopIfDiverged,
        StopIfHigher,
        StopIfLower,
        StopIfNoDecrease,
        StopIfNoIncrease,
    )
    from pipeline.hooks.limits import (
        StopAfterEpochsHook,
        StopAfterExamplesHook,
        StopAfterSecsHook,
        StopAtStepHook,
    )
    from pipeline.hooks.loss_guard import LossGuard
    from pipeline.hooks.plateau import ReduceOnPlateau
    from pipeline.hooks.preemption import PreemptionHook
    from pipeline.hooks.stock import (
        LoggingHook,
        NanHook,
        NanLossDuringTrainingError,
        ProfilerHook,
        StepCounterHook,
        SummaryHook,
        TensorHook,
    )
    from pipeline.inspection.inspection import inspect
    from pipeline.mistakes.exits import run
    from pipeline.model_dir.claim import ClaimedError
    from pipeline.model_dir.storage import StorageError
    from pipeline.process.refusals import (
        Refusal,
        RefusedImportError,
        RefusedTypeError,
        RefusedValueError,
    )
    from pipeline.process.signals import PreemptedError
    from pipeline.roles.first_look import fast_dev_run, overfit_batches
    from pipeline.roles.keep_best import KeepBest
    from pipeline.roles.learning_rates import find_learning_rate
    from pipeline.roles.replay import replay
    from pipeline.roles.specs import EvalSpec, TrainSpec
    from pipeline.roles.train_and_evaluate import train_and_evaluate
    from pipeline.tools.files import CsvTool, JsonLinesTool
    from pipeline.tools.trackers import MlflowTool, WandbTool
    from pipeline.warm_start.freezing import unfrozen
    from pipeline.warm_start.vocabulary import VocabInfo
    from pipeline.warm_start.warm_start_settings import WarmStartSettings

from pipeline.mistakes import habits
from pipeline.process import later, refusals, run_log

_FILES = {
    "Estimator": "driver.estimator",
    "RunConfig": "contract.run_config",
    "ExponentialAverage": "contract.averages",
    "StochasticWeightAverage": "contract.averages",
    "TrainSpec": "roles.specs",
    "EvalSpec": "roles.specs",
    "KeepBest": "roles.keep_best",
    "train_and_evaluate": "roles.train_and_evaluate",
    "fast_dev_run": "roles.first_look",
    "overfit_batches": "roles.first_look",
    "find_learning_rate": "roles.learning_rates",
    "replay": "roles.replay",
    "inspect": "inspection.inspection",
    "run": "mistakes.exits",
    "ModeKeys": "contract.spec",
    "EstimatorSpec": "contract.spec",
    "TrainOp": "contract.train_op",
    "MeanOverExamples": "contract.train_op",
    "metric": "contract.metrics",
    "host_metric": "contract.metrics",
    "image": "contract.summaries",
    "histogram": "contract.summaries",
    "text": "contract.summaries",
    "pr_curve": "contract.summaries",
    "confusion_matrix": "contract.summaries",
    "SpecError": "contract.train_op",
    "Hook": "contract.hooks",
    "Run": "contract.hooks",
    "Report": "contract.hooks",
    "StopAtStepHook": "hooks.limits",
    "StopAfterSecsHook": "hooks.limits",
    "StopAfterExamplesHook": "hooks.limits",
    "StopAfterEpochsHook": "hooks.limits",
    "StopIfHigher": "hooks.early_stopping",
    "StopIfLower": "hooks.early_stopping",
    "StopIfNoIncrease": "hooks.early_stopping",
    "StopIfNoDecrease": "hooks.early_stopping",
    "StopIfDiverged": "hooks.early_stopping",
    "ReduceOnPlateau": "hooks.plateau",
    "LoggingHook": "hooks.stock",
    "StepCounterHook": "hooks.stock",
    "NanHook": "hooks.stock",
    "LossGuard": "hooks.loss_guard",
    "SummaryHook": "hooks.stock",
    "TensorHook": "hooks.stock",
    "ProfilerHook": "hooks.stock",
    "NanLossDuringTrainingError": "hooks.stock",
    "PreemptionHook": "hooks.preemption",
    "PreemptedError": "process.signals",
    "PeerLostError": "cluster.ports",
    "SavingListener": "contract.hooks",
    "Tool": "contract.hooks",
    "CsvTool": "tools.files",
    "JsonLinesTool": "tools.files",
    "MlflowTool": "tools.trackers",
    "WandbTool": "tools.trackers",
    "Exporter": "export.exporters",
    "LatestExporter": "export.exporters",
    "FinalExporter": "export.exporters",
    "BestExporter": "export.exporters",
    "ServingInputReceiver": "export.receivers",
    "build_raw_serving_input_receiver_fn": "export.receivers",
    "build_parsing_serving_input_receiver_fn": "export.receivers",
    "WarmStartSettings": "warm_start.warm_start_settings",
    "VocabInfo": "warm_start.vocabulary",
    "unfrozen": "warm_start.freezing",
    "CheckpointMismatchError": "checkpoints.checkpoint",
    "UnreadableCheckpointError": "checkpoints.checkpoint_reader",
    "Refusal": "process.refusals",
    "RefusedValueError": "process.refusals",
    "RefusedTypeError": "process.refusals",
    "RefusedImportError": "process.refusals",
    "StorageError": "model_dir.storage",
    "ClaimedError": "model_dir.claim",
}

__all__ = [
    "Estimator",
    "RunConfig",
    "ExponentialAverage",
    "StochasticWeightAverage",
    "TrainSpec",
    "EvalSpec",
    "KeepBest",
    "train_and_evaluate",
    "fast_dev_run",
    "overfit_batches",
    "find_learning_rate",
    "replay",
    "inspect",
    "run",
    "ModeKeys",
    "EstimatorSpec",
    "TrainOp",
    "MeanOverExamples",
    "metric",
    "host_metric",
    "image",
    "histogram",
    "text",
    "pr_curve",
    "confusion_matrix",
    "SpecError",
    "Hook",
    "Run",
    "Report",
    "StopAtStepHook",
    "StopAfterSecsHook",
    "StopAfterExamplesHook",
    "StopAfterEpochsHook",
    "StopIfHigher",
    "StopIfLower",
    "StopIfNoIncrease",
    "StopIfNoDecrease",
    "StopIfDiverged",
    "ReduceOnPlateau",
    "LoggingHook",
    "StepCounterHook",
    "NanHook",
    "LossGuard",
    "SummaryHook",
    "TensorHook",
    "ProfilerHook",
    "NanLossDuringTrainingError",
    "PreemptionHook",
    "PreemptedError",
    "PeerLostError",
    "SavingListener",
    "Tool",
    "CsvTool",
    "JsonLinesTool",
    "MlflowTool",
    "WandbTool",
    "Exporter",
    "LatestExporter",
    "FinalExporter",
    "BestExporter",
    "ServingInputReceiver",
    "build_raw_serving_input_receiver_fn",
    "build_parsing_serving_input_receiver_fn",
    "WarmStartSettings",
    "VocabInfo",
    "unfrozen",
    "CheckpointMismatchError",
    "UnreadableCheckpointError",
    "Refusal",
    "RefusedValueError",
    "RefusedTypeError",
    "RefusedImportError",
    "StorageError",
    "ClaimedError",
]

run_log.leave_out_chatter()
later.leave_for_later()


if not TYPE_CHECKING:  # Else a checker would let every name pass.

    def __getattr__(name: str) -> Any:
        if name not in _FILES:
            line = {**habits.STOP_HOOKS, **habits.RULES, **habits.NAMES}.get(name)
            near = refusals.near(name, __all__)
            hint = f": write {line}." if line else near and f".{near}"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        return getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
