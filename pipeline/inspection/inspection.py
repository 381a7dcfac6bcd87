"""Looks at a whole training before it begins: `--job=inspect`."""

import dataclasses
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence

from pipeline.contract.run_config import RunConfig
from pipeline.contract.spec import ModeKeys
from pipeline.driver.estimator import Estimator
from pipeline.driver.recipe import Recipe
from pipeline.feed.dataset import Source
from pipeline.inspection import inputs, schedule, state
from pipeline.inspection import topology as topology_lib
from pipeline.inspection.findings import Finding, certain, plural
from pipeline.inspection.inputs import InputLook
from pipeline.inspection.topology import Topology
from pipeline.mistakes import checks
from pipeline.model_dir import storage
from pipeline.process.refusals import Refusal, RefusedTypeError, RefusedValueError
from pipeline.roles import evaluation, specs
from pipeline.roles.rules import FedHooks
from pipeline.roles.specs import EvalSpec, TrainSpec
from pipeline.tracing import seeds

# Columns of the findings; a path or a line of code stays in one piece.
_WIDTH = 96
_WHOLE = {"break_long_words": False, "break_on_hyphens": False}
# Seconds in which inputs are called and read, unless the caller says.
SECS = 8.0


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What was found.

    Attributes:
      report: lines of the report.
      findings: mistakes and doubts, mistakes first.
    """

    report: Sequence[str]
    findings: Sequence[Finding]

    @property
    def mistakes(self) -> list[str]:
        """The texts of the mistakes that are certain."""
        return [each.text for each in certain(self.findings)]

    def lines(self) -> Iterator[str]:
        """Yields the report, and then each finding."""
        yield from self.report
        for finding in self.findings:
            for line in str(finding).split("\n"):
                yield textwrap.fill(line, _WIDTH, subsequent_indent="  ", **_WHOLE)
        if not self.findings:
            yield "nothing was found"

    def check(self) -> None:
        """Refuses a training with mistakes.

        Raises:
          ValueError: a mistake is certain.
        """
        if found := self.mistakes:
            count = plural(len(found), "mistake")
            raise RefusedValueError(f"inspect has found {count}: see the report.")


def inspect(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec] = (),
    *,
    num_workers: int | None = None,
    num_replicas: int | None = None,
    num_ps: int | None = None,
    secs: float = SECS,
    clock: Callable[[], float] = time.monotonic,
) -> Inspection:
    """Tells what a training would do; trains, writes and connects nothing.

    The modules are built once, on this machine's CPU. Each input_fn is called as the
    first, a middle and the last worker would call it, and its examples are compared:
    are they disjoint, do they cover the data, are they even? Other workers' pipelines
    are built as time allows.

    It runs TensorFlow, after which a process can take no part in a cluster: where
    several workers train, call it in a process of its own, as `--job=inspect` is.

    Args:
      estimator: Estimator of the model.
      train_spec: TrainSpec as for `train_and_evaluate`.
      eval_spec: EvalSpec, or several, or none.
      num_workers: workers of a cluster to pretend; None for those of TF_CONFIG.
      num_replicas: replicas of each of them; None for those of this machine.
      num_ps: parameter servers to pretend; None for those of TF_CONFIG.
      secs: seconds in which inputs are called and read, roughly.
      clock: function that returns seconds.

    Returns:
      The report, and what is wrong.

    Raises:
      TypeError: train_spec or eval_spec is of another type.
      ValueError: a number is not positive, or a cluster is missing.
    """
    if not isinstance(train_spec, TrainSpec):
        raise RefusedTypeError(
            f"train_spec is {checks.kind_of(train_spec)}, not a TrainSpec: write "
            "inspect(estimator, TrainSpec(input_fn), EvalSpec(input_fn))."
        )
    if not checks.is_number(secs) or secs <= 0:
        raise RefusedValueError(f"inspect.secs is {secs!r}: write a number, secs=8.")
    eval_specs = specs.as_list(eval_spec) if eval_spec else []
    recipe = estimator.recipe
    config = recipe.config
    topology = topology_lib.of(
        config, num_workers=num_workers, num_replicas=num_replicas, num_ps=num_ps
    )
    with seeds.untouched(), storage.only_looking():
        looks = list(_looks(recipe, train_spec, eval_specs, topology, secs, clock))
        built = state.look(
            recipe, [(each.mode, each.element_spec) for each in looks], topology
        )
    saved = schedule.lines(
        config,
        train_spec,
        eval_specs,
        checkpoint_bytes=built.checkpoint_bytes,
        warm_start_from=recipe.warm_start_from,
    )
    report = [
        *topology.lines(config),
        *(line for each in looks for line in ("", *each.lines)),
        "",
        *built.lines,
        "",
        *saved,
        "",
    ]
    findings = [*_refused(config, train_spec, eval_specs), *built.findings]
    findings += [f for each in looks for f in each.findings]
    findings.sort(key=lambda each: not each.is_certain)
    return Inspection(report, findings)


def _looks(
    recipe: Recipe,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    topology: Topology,
    secs: float,
    clock: Callable[[], float],
) -> Iterator[InputLook]:
    """Yields a look at each input; what one leaves of its time, the next ones have."""
    end, config = clock() + secs, recipe.config
    yield inputs.look(
        Source(train_spec.input_fn, ModeKeys.TRAIN, recipe.context),
        topology.training(),
        title="train",
        secs=secs / (1 + len(eval_specs)),
        num_batches=config.gradient_accumulation_steps,
        clock=clock,
    )
    for index, spec in enumerate(eval_specs):
        yield inputs.look(
            Source(spec.data_fn, ModeKeys.EVAL, recipe.context),
            topology.evaluation(config),
            title=f"eval {spec.name}" if spec.name else "eval",
            secs=max(end - clock(), 0) / (len(eval_specs) - index),
            has_steps=spec.steps is not None,
            clock=clock,
        )


def _refused(
    config: RunConfig, train_spec: TrainSpec, eval_specs: Sequence[EvalSpec]
) -> list[Finding]:
    """Returns what `train_and_evaluate` would refuse of its specs at once."""
    if not eval_specs:
        return []
    try:
        FedHooks(config, train_spec, eval_specs)
        evaluation.check_saved(config, eval_specs)
    except Refusal as error:
        return [Finding(str(error), is_certain=True)]
    return []
