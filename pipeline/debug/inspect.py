# SPDX-License-Identifier: Apache-2.0
"""inspect: describes a training before it begins, and finds errors."""

import contextlib
import dataclasses
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from ..checkpoint import files
from ..contract import seeds
from ..contract.checks import check, instance, number
from ..contract.spec import ModeKeys
from ..data import tpu_input
from ..data.batch import components_of
from ..data.source import Source
from ..distribute import names
from ..errors import UserValueError
from ..estimator.estimator import Estimator
from ..hooks import run_description
from ..hooks.stop_hooks import with_stops
from ..loop import early_stopping
from ..loop.checkpointing import DEFAULT_SECS
from ..loop.specs import EvalSpec, TrainSpec, check_evaluations
from ..loop.train_program import TrainProgram
from ..model_dir import phases, records
from ..run import tracebacks
from .division import Division, division_of
from .summed_loss import summed_loss
from .workers import Workers

_WAITING = 0.2  # Share of the time, above which data workers pay.
# Options of the checkpoints that stay for good.
_KEPT = ("keep_checkpoint_every_n_hours", "keep_checkpoint_every_n_steps", "keep_checkpoint_steps")


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The result of `inspect`.

    Attributes:
      report: lines that describe the training.
      errors: problems with which a training fails or is wrong.
      warnings: possible problems.
    """

    report: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yields the report, `error: ...` and `warning: ...`."""
        yield from self.report
        yield from (f"error: {text}" for text in self.errors)
        yield from (f"warning: {text}" for text in self.warnings)
        if not self.errors and not self.warnings:
            yield "nothing was found"

    def check(self) -> None:
        """Raises a UserValueError if there are errors."""
        if count := len(self.errors):
            raise UserValueError(
                f"inspect has found {count} error{'s' if count > 1 else ''}: see the report."
            )


def inspect(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec] = (),
    *,
    num_workers: int | None = None,
    num_replicas: int | None = None,
    num_ps: int | None = None,
    secs: float = 8.0,
) -> Inspection:
    """Describes a training and finds errors; trains, writes and connects nothing.

    It calls each input_fn as the workers would, compares their examples, and builds the modules on
    this machine. Errors are an input_fn that ignores its `input_context`, examples that reach
    several workers or none, an input that fails for some worker, an EVAL input without end, a batch
    without a fixed shape on a TPU, and a model_fn or exporter that fails. If random augmentation
    makes each reading different, only the pipelines are compared. A process that has called it
    cannot take part in a cluster any more.

    Args:
      estimator: the Estimator, which does not change.
      train_spec: the TrainSpec of the training.
      eval_spec: its EvalSpec, or several.
      num_workers: number of workers of a cluster to simulate, without the chief of servers; None
        for the tasks of TF_CONFIG.
      num_replicas: number of replicas of each worker; None for the devices of this machine.
      num_ps: number of parameter servers to simulate.
      secs: approximate duration of reading.

    Returns:
      The report, the errors and the warnings.

    Raises:
      UserError: an argument is wrong. Other errors are part of the result.
    """
    example = "TrainSpec(input_fn, max_steps=1000)"
    check("train_spec", train_spec, instance(TrainSpec, "a TrainSpec", example))
    check("inspect.secs", secs, number(0, above=True, example=8))
    specs = list(eval_spec) if isinstance(eval_spec, Sequence) else [eval_spec]
    config = estimator.config
    division = division_of(
        config, num_workers=num_workers, num_replicas=num_replicas, num_ps=num_ps
    )
    simulated = " (simulated)" if num_workers or num_replicas or num_ps else ""
    found = Inspection([f"topology{simulated}: {division}"])
    with (
        tempfile.TemporaryDirectory(prefix="inspect-") as folder,
        seeds.seeded(config.tf_random_seed or 0),
    ):
        alone = estimator.with_config(config.alone(model_dir=folder, metric_writers=()))
        secs /= 1 + len(specs)
        found.report.extend(_input(alone, train_spec, division, found, secs=secs))
        on_one = division.num_ps or config.has_evaluator
        for spec in specs:
            division_of_spec = Division() if on_one else division
            found.report.extend(_input(alone, spec, division_of_spec, found, secs=secs))
        found.report.extend(_model(alone, train_spec, specs, division, found))
    found.report.extend(_waiting(estimator.model_dir))
    found.report.extend(_schedule(estimator, train_spec, specs))
    return found


@contextlib.contextmanager
def _reported(errors: list[str]) -> Iterator[None]:
    """Adds an error of the block to the errors, unless one has it already."""
    try:
        yield
    except Exception as error:
        text = tracebacks.text_of(error)
        if not any(text.partition("\n")[0] in each for each in errors):
            errors.append(text)


def _input(
    alone: Estimator,
    spec: TrainSpec | EvalSpec,
    division: Division,
    found: Inspection,
    *,
    secs: float,
) -> Iterator[str]:
    """Yields lines about an input, and adds errors and warnings."""
    is_training = isinstance(spec, TrainSpec)
    mode = ModeKeys.TRAIN if is_training else ModeKeys.EVAL
    source = Source(spec.input_fn, mode, alone.config, alone.params)
    workers = Workers(source, division, secs=secs)
    yield f"input {'train' if is_training else f'eval {spec.name}'.strip()}: {source.name[:-1]}"
    if workers.first is not None:
        for name, each in components_of(workers.first.spec):
            yield f"  {name} {each.dtype.name} {each.shape} {type(each).__name__}"
        yield from (f"  {line}" for line in _batch(source, division, workers.first.rows, alone))
    yield from (f"  {line}" for line in workers.lines())
    found.errors.extend(workers.errors)
    found.warnings.extend(workers.warnings)
    if alone.config.execution == "tpu":
        with _reported(found.errors):
            tpu_input.checked_spec(source, division.num_replicas)


def _batch(source: Source, division: Division, rows: int, alone: Estimator) -> Iterator[str]:
    """Yields how many examples make a batch, and who gets which."""
    replicas, repeats = division.num_replicas, alone.config.gradient_accumulation_steps
    if division.num_ps:
        yield f"a step of a worker takes a batch of {rows:,} examples"
    elif source.yields_global_batches:
        yield f"global batch {rows:,}, split between {replicas:,} replicas (no input_context)"
    else:
        yield f"global batch {rows * replicas:,} = {rows:,} x {replicas:,} replicas"
    if source.mode == ModeKeys.TRAIN and repeats > 1:
        yield f"a step takes {repeats} of them"


def _model(
    alone: Estimator,
    train_spec: TrainSpec,
    specs: Sequence[EvalSpec],
    division: Division,
    found: Inspection,
) -> Iterator[str]:
    """Builds the modules as a training would; yields lines about them, and adds errors."""
    hooks = [*with_stops(train_spec), *(rule for spec in specs for rule in spec.early_stopping)]
    metrics: dict[str, Sequence[str]] = {spec.name: () for spec in specs}
    before = len(found.errors)
    with _reported(found.errors):
        check_evaluations(specs, saves=alone.config.save_checkpoints_steps != 0)
    with _reported(found.errors):
        TrainProgram(alone.model, train_spec.input_fn, hooks=hooks)
        if warning := summed_loss(alone, train_spec.input_fn):
            found.warnings.append(warning)
    for spec in specs:
        with _reported(found.errors):
            [evaluation] = alone.trace_evaluations([spec], trained=alone.state)
            metrics[spec.name] = evaluation.metric_names
    with _reported(found.errors):
        early_stopping.check(hooks, metrics, alone.config)
    is_whole = len(found.errors) == before
    yield f"modules{'' if is_whole else ' (not all was built)'}:"
    with contextlib.suppress(Exception):  # A factory that fails was found above.
        lines = run_description.sizes(alone.state.modules).split(" | ")
        yield from [*(f"  {line}" for line in lines), *_memory(alone, specs, division)]


def _memory(alone: Estimator, specs: Sequence[EvalSpec], division: Division) -> Iterator[str]:
    state, config = alone.state, alone.config
    everything, networks = state.variables(), names.variables_of(state.networks).values()
    averages = state.averages.variables() if state.averages else {}
    total, variables, averaged = map(_megabytes, (everything.values(), networks, averages.values()))
    gradients = _megabytes(each for each in networks if each.trainable)
    yield (
        f"memory: variables {variables:.3f} MB, optimizers {total - variables - averaged:.3f} MB, "
        f"averages {averaged:.3f} MB, gradients {gradients:.3f} MB, and activations"
    )
    if division.num_ps or division.is_central:
        place = f"on {division.num_ps} servers" if division.num_ps else "in one copy"
        yield f"  variables, optimizers and averages {place}, the rest on each replica"
    else:
        yield f"  all of it on each of {division.num_replicas} replicas"
    if config.save_checkpoints_steps != 0:
        most = config.keep_checkpoint_max or 0
        most += sum(each.k for spec in specs for each in spec.keep_best) if most else 0
        kept = [f"at most {most}, {most * total:.3f} MB" if most else "all"]
        kept += [f"{name}={v}" for name, v in config.changes().items() if name in _KEPT]
        yield f"a checkpoint of {total:.3f} MB; kept: {', '.join(kept)}"


def _megabytes(variables: Any) -> float:
    parts = [p for v in variables if hasattr(v, "shape") for p in names.parts_of(v)]
    return sum(math.prod(p.shape) * p.dtype.size for p in parts) / 1e6


def _waiting(model_dir: str) -> Iterator[str]:
    """Yields how long the steps in model_dir have waited for data, if other processes may help."""
    content, _ = records.content(os.path.join(model_dir, phases.HISTORY))
    secs = phases.times(phases.parse(content)).secs
    waited, steps = secs[phases.INPUT], secs[phases.STEPS] + secs[phases.HOOKS]
    if waited > _WAITING * (waited + steps):
        yield (
            f"the steps in model_dir waited for data in {waited / (waited + steps):.0%} of the "
            "time: gin-estimator launch --data_workers=2 makes batches in other processes"
        )


def _schedule(
    estimator: Estimator, train_spec: TrainSpec, specs: Sequence[EvalSpec]
) -> Iterator[str]:
    """Yields the beginning and the end of a training, and the steps of saves and hooks."""
    config = estimator.config
    yield f"begins with {files.latest(estimator.model_dir) or 'initial values, or warm_start_from'}"
    fields = ("max_steps", "max_epochs", "max_secs")
    limits = [f"{name} {value}" for name in fields if (value := getattr(train_spec, name))]
    yield f"ends at {' or '.join(limits) or 'the end of the input'}"
    steps, secs = config.save_checkpoints_steps, config.save_checkpoints_secs or DEFAULT_SECS
    often = f"{secs:g} s" if steps is None else f"{steps} steps"
    yield "saves nothing" if steps == 0 else f"saves at the start, every {often}, and at the end"
    yield (
        f"log_step_count_steps {config.log_step_count_steps}, "
        f"save_summary_steps {config.save_summary_steps}"
    )
    for hook in train_spec.hooks:
        yield f"hook {type(hook).__name__}, every_steps {hook.every_steps}"
    for listener in train_spec.saving_listeners:
        yield f"saving listener {type(listener).__name__}"
    for spec in specs:
        when = ["at the start"] if spec.at_start else []
        if spec.every_steps or steps != 0:
            when.append(f"every {spec.every_steps} steps" if spec.every_steps else "at checkpoints")
        by = " by the evaluator job" if config.has_evaluator else ""
        data = f"{spec.steps} steps" if spec.steps else "all data"
        yield f"evaluates {spec.folder} {' and '.join([*when, 'at the end'])}{by}: {data}"
        for rule in spec.early_stopping:
            yield f"  {type(rule).__name__} of {rule.metric}"
        for best in spec.keep_best:
            yield f"  keeps the best {best.k} by {best.metric}"
        for exporter in spec.exporters:
            folder = f"{spec.name}/" if len(specs) > 1 else ""
            yield f"  {type(exporter).__name__} to export/{folder}{exporter.name}"
