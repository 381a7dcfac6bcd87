"""Says what of a call means something else here, though its name is only replaced."""

import dataclasses
import re
from collections.abc import Mapping

import libcst as cst

from pipeline.mistakes import habits

SUBCLASS, TYPE, VALUE = "subclass", "type", "value"
_USES = {
    SUBCLASS: "see that what the subclass overrides is called here",
    VALUE: "it is called elsewhere: see that each argument is taken here",
}
_OF_EXPORTERS = {
    "event_file_pattern": "leave it out: the record of the best is in the export",
    "assets_extra": "leave it out",
    "as_text": "leave it out",
}
_DISTRIBUTED = (
    "an input_fn without input_context yields batches of all replicas together here, "
    "of one replica there: take input_context, and batch by "
    "input_context.get_per_replica_batch_size(64)"
)
_LOSS = (
    "a scalar is taken for the mean over this replica's batch: hand on the loss of "
    "each example, or a mean"
)
_TRAIN_OP = (
    "write train_op=ge.TrainOp(optimizer, network.trainable_variables): the driver "
    "computes and applies the gradients"
)
_OF_LOSSES = {
    "weights": "hand on loss=weights * loss, loss_weights=tf.cast(weights != 0, "
    "tf.float32): there the mean is over the weights that are not 0",
    "reduction": "the spec's loss is a mean: multiply it for a sum",
    "label_smoothing": "smooth the labels before: none of the lines does it",
}
_OF_METRICS = {"weights": "write sample_weight=weights behind ge.metric's tensors"}
_OF_NUMBERS = {
    "shape": "a Schema's number is one for each row: declare a feature for each, or "
    "hand the vector on to a network of your own"
}


@dataclasses.dataclass(frozen=True)
class Taken:
    """The arguments that a call may have here as there.

    Attributes:
      gone: what to write instead of arguments that are gone, by name.
      positional: how many may be given by position.
      known: names that mean the same; None for all that are not gone.
      names: what those by position are called, where these may be gone.
    """

    gone: Mapping[str, str] = dataclasses.field(default_factory=dict)
    positional: int = 0
    known: tuple[str, ...] | None = None
    names: tuple[str, ...] = ()


_SPEC = Taken({**habits.ESTIMATOR_SPEC, "loss": _LOSS, "train_op": _TRAIN_OP}, 2)
# What may be given as None all the same.
_OPTIONAL = ("loss", "train_op", "train_distribute", "eval_distribute")
_RUN_CONFIG = Taken(
    {
        **habits.RUN_CONFIG,
        "train_distribute": _DISTRIBUTED,
        "eval_distribute": _DISTRIBUTED,
        "cluster": "TF_CONFIG, or --tpu, says where the others are",
    }
)
_ESTIMATOR = Taken(habits.ESTIMATOR, 5)
_EXPORTER = Taken(_OF_EXPORTERS, 2)
_LOSS_FUNCTION = Taken(_OF_LOSSES, 9, names=("labels", "predictions", "weights"))
_METRIC_FUNCTION = Taken(_OF_METRICS, 9, names=("labels", "predictions", "weights"))
_TAKEN = {
    "tf.estimator.EstimatorSpec": _SPEC,
    "tf.estimator.tpu.TPUEstimatorSpec": _SPEC,
    "tf.contrib.tpu.TPUEstimatorSpec": _SPEC,
    "tf.estimator.RunConfig": _RUN_CONFIG,
    "tf.estimator.tpu.RunConfig": _RUN_CONFIG,
    "tf.contrib.tpu.RunConfig": _RUN_CONFIG,
    "tf.estimator.Estimator": _ESTIMATOR,
    "tf.estimator.tpu.TPUEstimator": _ESTIMATOR,
    "tf.contrib.tpu.TPUEstimator": _ESTIMATOR,
    "tf.feature_column.numeric_column": Taken(_OF_NUMBERS, 1),
    "tf.estimator.TrainSpec": Taken(positional=4),
    "tf.estimator.EvalSpec": Taken(positional=7),
    "tf.estimator.train_and_evaluate": Taken(positional=3),
    "tf.estimator.BestExporter": _EXPORTER,
    "tf.estimator.FinalExporter": _EXPORTER,
    "tf.estimator.LatestExporter": _EXPORTER,
    "tf.estimator.StopAtStepHook": Taken(positional=2),
    "tf.estimator.WarmStartSettings": Taken(positional=3),
    "tf.estimator.export.ServingInputReceiver": Taken(
        habits.RECEIVER, 3, names=tuple(habits.RECEIVER)
    ),
    "tf.estimator.export.build_raw_serving_input_receiver_fn": Taken(
        positional=1, known=("features",)
    ),
    "tf.estimator.export.build_parsing_serving_input_receiver_fn": Taken(
        positional=1, known=("feature_spec",)
    ),
}


def notes(name: str, call: cst.Call | None, use: str = VALUE) -> list[str]:
    """Returns what has to be decided of a name that is only replaced.

    Args:
      name: the row's.
      call: the call of that name; None where it is not called there.
      use: what it is then: `SUBCLASS`, `TYPE` or `VALUE`.

    Returns:
      Sentences; none where it means the same.
    """
    taken = _taken(name)
    if taken is None:
        return []
    if call is None:
        return [_USES[use]] if use in _USES else []
    return [*_by_position(call.args, taken), *gone(name, call)]


def gone(name: str, call: cst.Call) -> list[str]:
    """Returns what to write instead of a call's arguments that are gone.

    Args:
      name: the row's.
      call: a call with that function's arguments.
    """
    taken = _taken(name)
    found = []
    for n, arg in enumerate(call.args):
        by_position = taken.names[n] if n < len(taken.names) else ""
        name = arg.keyword.value if arg.keyword else by_position
        if name in taken.gone and not (name in _OPTIONAL and _is_none(arg.value)):
            found.append(f"{name}: {taken.gone[name]}")
        elif name and taken.known is not None and name not in taken.known:
            found.append(f"{name}: see that the function has it here")
    return found


def _taken(name: str) -> Taken | None:
    if re.match(r"tf\.losses\.(?!get_|add_)", name):
        return _LOSS_FUNCTION
    if name.startswith("tf.metrics."):
        return _METRIC_FUNCTION
    return _TAKEN.get(name)


def _by_position(args: tuple[cst.Arg, ...], taken: Taken) -> list[str]:
    if any(arg.star for arg in args):
        return ["its arguments are made elsewhere: see that each is taken here"]
    if sum(arg.keyword is None for arg in args) > taken.positional:
        return ["write its arguments by name"]
    return []


def _is_none(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value == "None"
