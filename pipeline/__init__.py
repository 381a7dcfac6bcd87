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
    from pipeline.checkpoint import CheckpointMismatchError
    from pipeline.checkpoint_reader import (
        UnreadableCheckpointError,
    )
    from pipeline.claim import ClaimedError
    from pipeline.estimator import Estimator
    from pipeline.exits import run
    from pipeline.export import (
        BestExporter,
        Exporter,
        FinalExporter,
        LatestExporter,
        ServingInputReceiver,
        build_parsing_serving_input_receiver_fn,
        build_raw_serving_input_receiver_fn,
    )
    from pipeline.hooks import Hook, SavingListener
    from pipeline.ports import PeerLostError
    from pipeline.preemption import PreemptionHook
    from pipeline.refusals import (
        Refusal,
        RefusedImportError,
        RefusedTypeError,
        RefusedValueError,
    )
    from pipeline.run_config import RunConfig
    from pipeline.signals import PreemptedError
    from pipeline.spec import (
        EstimatorSpec,
        ModeKeys,
        SpecError,
        TrainOp,
        metric,
    )
    from pipeline.specs import (
        EvalSpec,
        TrainSpec,
    )
    from pipeline.stock_hooks import (
        LoggingHook,
        NanHook,
        NanLossDuringTrainingError,
        ProfilerHook,
        StepCounterHook,
        StopAtStepHook,
        SummaryHook,
    )
    from pipeline.storage import StorageError
    from pipeline.training import train_and_evaluate
    from pipeline.warm_start import WarmStartSettings

from pipeline import run_log

_FILES = {
    "Estimator": "estimator",
    "RunConfig": "run_config",
    "TrainSpec": "specs",
    "EvalSpec": "specs",
    "train_and_evaluate": "training",
    "run": "exits",
    "ModeKeys": "spec",
    "EstimatorSpec": "spec",
    "TrainOp": "spec",
    "metric": "spec",
    "SpecError": "spec",
    "Hook": "hooks",
    "StopAtStepHook": "stock_hooks",
    "LoggingHook": "stock_hooks",
    "StepCounterHook": "stock_hooks",
    "NanHook": "stock_hooks",
    "SummaryHook": "stock_hooks",
    "ProfilerHook": "stock_hooks",
    "NanLossDuringTrainingError": "stock_hooks",
    "PreemptionHook": "preemption",
    "PreemptedError": "signals",
    "PeerLostError": "ports",
    "SavingListener": "hooks",
    "Exporter": "export",
    "LatestExporter": "export",
    "FinalExporter": "export",
    "BestExporter": "export",
    "ServingInputReceiver": "export",
    "build_raw_serving_input_receiver_fn": "export",
    "build_parsing_serving_input_receiver_fn": "export",
    "WarmStartSettings": "warm_start",
    "CheckpointMismatchError": "checkpoint",
    "UnreadableCheckpointError": "checkpoint_reader",
    "Refusal": "refusals",
    "RefusedValueError": "refusals",
    "RefusedTypeError": "refusals",
    "RefusedImportError": "refusals",
    "StorageError": "storage",
    "ClaimedError": "claim",
}

__all__ = [
    "Estimator",
    "RunConfig",
    "TrainSpec",
    "EvalSpec",
    "train_and_evaluate",
    "run",
    "ModeKeys",
    "EstimatorSpec",
    "TrainOp",
    "metric",
    "SpecError",
    "Hook",
    "StopAtStepHook",
    "LoggingHook",
    "StepCounterHook",
    "NanHook",
    "SummaryHook",
    "ProfilerHook",
    "NanLossDuringTrainingError",
    "PreemptionHook",
    "PreemptedError",
    "PeerLostError",
    "SavingListener",
    "Exporter",
    "LatestExporter",
    "FinalExporter",
    "BestExporter",
    "ServingInputReceiver",
    "build_raw_serving_input_receiver_fn",
    "build_parsing_serving_input_receiver_fn",
    "WarmStartSettings",
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


if not TYPE_CHECKING:  # Else a checker would let every name pass.

    def __getattr__(name: str) -> Any:
        if name not in _FILES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
