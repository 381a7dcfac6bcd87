# SPDX-License-Identifier: Apache-2.0
"""The values that a sweep searches: `--search="LEARNING_RATE=log(1e-4, 1e-1)"`."""

import importlib.util
import itertools
import math
import pathlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import UserValueError
from ..run.suggestions import near

try:
    import optuna
except ImportError as error:
    raise UserValueError(
        f"{error.name} is not installed: expected Optuna. Run python -m pip install optuna."
    ) from error

_Choices = optuna.distributions.CategoricalDistribution

_SEARCH = re.compile(r"\s*([A-Za-z_][\w/.]*)\s*=\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
# Whether the numbers of a kind are integers, and whether they are searched on a log scale.
_NUMBERS = {
    "uniform": (False, False),
    "log": (False, True),
    "int": (True, False),
    "log_int": (True, True),
}
_EXAMPLES = (
    "x=uniform(0, 0.5), x=uniform(0, 1, 0.1), x=log(1e-4, 1e-1), x=int(0, 200, 50), "
    "x=log_int(8, 512) or x=choice(32, 64)"
)
_MAX_COMBINATIONS = 100_000


def read(texts: Iterable[str]) -> dict[str, Any]:
    """Returns the Optuna distributions of a search by name; choices are gin text.

    Args:
      texts: `NAME=KIND(VALUES)` each.

    Raises:
      UserValueError: a text is something else, or two have the same name.
    """
    found: dict[str, Any] = {}
    for text in texts:
        match = _SEARCH.fullmatch(text)
        name, kind, inside = match.groups() if match else (None, "", "")
        if name in found:
            raise UserValueError(f"--search has {name} twice: expected each name once.")
        try:
            found[name] = _distribution(kind, _split(inside))
        except (KeyError, TypeError, ValueError) as error:
            known = "log" if kind == "loguniform" else ""
            hint = f" Did you mean {known}?" if known else near(kind, (*_NUMBERS, "choice"))
            raise UserValueError(
                f"--search is {text}: expected NAME=KIND(VALUES), such as {_EXAMPLES}."
                f"{hint if isinstance(error, KeyError) else f' {error}'}"
            ) from None
    return found


def _distribution(kind: str, items: Sequence[str]) -> Any:
    if kind == "choice":
        if len(set(items)) < len(items) or not all(items):
            raise ValueError("Two choices are equal, or one is empty.")
        return _Choices(items)
    is_int, is_log = _NUMBERS[kind]
    low, high, *step = map(int if is_int else float, items)
    if not all(map(math.isfinite, (low, high, *step))) or len(step) > 1 - is_log:
        raise ValueError("There are other than two numbers and maybe a step.")
    distributions = optuna.distributions
    make = distributions.IntDistribution if is_int else distributions.FloatDistribution
    return make(low, high, is_log, *step)


def ends(distribution: Any) -> Sequence[Any]:
    """Returns the values to check before the first trial: all choices, or both bounds."""
    is_choice = isinstance(distribution, _Choices)
    return distribution.choices if is_choice else (distribution.low, distribution.high)


def grid(distributions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns all combinations of values by name.

    Raises:
      UserValueError: there are too many.
    """
    number = math.prod(map(_size, distributions.values()))
    if number > _MAX_COMBINATIONS:
        raise UserValueError(
            f"--search has {number} combinations: expected at most {_MAX_COMBINATIONS} for "
            "--sampler=grid. Set NAME=choice(...), or --sampler=random."
        )
    values = [
        each.choices
        if isinstance(each, _Choices)
        else [each.low + index * each.step for index in range(_size(each))]
        for each in distributions.values()
    ]
    return [dict(zip(distributions, each, strict=True)) for each in itertools.product(*values)]


def describe(
    folder: pathlib.Path, distributions: Mapping[str, Any], *, evaluation: str, metric: str
) -> None:
    """Writes what TensorBoard's tab HParams shows of a sweep: the search and its metric.

    Without it, the tab has all bindings of the trials, and the metrics of training first.

    Args:
      folder: folder of the sweep, above those of the trials.
      distributions: result of `read`.
      evaluation: folder of the evaluation below that of a trial.
      metric: metric of the evaluation.
    """
    if importlib.util.find_spec("tensorboard") is None or any(folder.glob("events.out.*")):
        return
    # They do not import TensorFlow, as tensorboard's own functions do.
    from tensorboard.compat.proto import event_pb2
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    experiment = api_pb2.Experiment()
    name = api_pb2.MetricName(group=evaluation, tag=metric)
    experiment.metric_infos.add(name=name, display_name=f"{metric} ({evaluation})")
    for name, each in distributions.items():
        is_number = all(re.fullmatch(r"[\d.e+-]+", str(value)) for value in ends(each))
        kind = api_pb2.DATA_TYPE_FLOAT64 if is_number else api_pb2.DATA_TYPE_STRING
        experiment.hparam_infos.add(name=name, type=kind, differs=True)
    data = plugin_data_pb2.HParamsPluginData(experiment=experiment)
    event = event_pb2.Event(wall_time=time.time())
    event.summary.value.add(
        tag=metadata.EXPERIMENT_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    with open(folder / "events.out.tfevents.0.sweep", "wb") as file:
        writer = RecordWriter(file)
        for each in (event_pb2.Event(file_version="brain.Event:2"), event):
            writer.write(each.SerializeToString())


def _size(distribution: Any) -> float:
    if isinstance(distribution, _Choices):
        return len(distribution.choices)
    if distribution.step is None:
        return math.inf
    return math.floor((distribution.high - distribution.low) / distribution.step + 1e-9) + 1


def _split(text: str) -> tuple[str, ...]:
    """Splits at the commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "," and not depth:
            parts.append("")
            continue
        depth += (character in "([{") - (character in ")]}") if not quote else 0
        parts[-1] += character
    return tuple(part.strip() for part in parts)
