"""Programs: what is compiled for a mode of model_fn and a shape of its input."""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from pipeline.contract.model_fn import BoundModelFn, check_model_fn
from pipeline.contract.spec import EstimatorSpec, ModeKeys
from pipeline.driver.recipe import Recipe
from pipeline.feed.batch import Plan
from pipeline.feed.feed import AnyFeed
from pipeline.loop import steps
from pipeline.loop.compiled_loop import CompiledLoop, StepsLoop
from pipeline.loop.coordinated_loop import CoordinatedLoop
from pipeline.loop.gradients import Norms
from pipeline.loop.metrics import MetricSet
from pipeline.loop.stretch import Showing
from pipeline.mistakes import checks, user_errors
from pipeline.process.refusals import RefusedTypeError
from pipeline.strategy.modules import Modules
from pipeline.strategy.parameter_server import ParameterServers
from pipeline.strategy.peers import Peers
from pipeline.strategy.replicas import has_one_trace
from pipeline.tracing import trace_checks
from pipeline.tracing.batch_sums import rows_of
from pipeline.tracing.compiling import compiled
from pipeline.tracing.host_values import HostMetrics
from pipeline.tracing.step_tensors import StepTensors
from pipeline.tracing.summary_states import SummarySet

# Most programs that are kept for a mode: more shapes of input are rare, and each
# program holds a compiled graph of the model.
_MOST_PROGRAMS = 8


@dataclasses.dataclass(frozen=True)
class Program:
    """The loop, or function, that was built for one mode and one shape of input.

    Attributes:
      element_spec: specs `(features, labels)` of a batch.
      plan: way in which a step's batches are taken.
      metrics: metrics of the mode; none in PREDICT.
      tensors: names of the tensors that hooks may want.
      compiled: loop over steps; for PREDICT a function of one step's features.
    """

    element_spec: Any
    plan: Plan
    metrics: MetricSet
    tensors: tuple[str, ...]
    compiled: Any


class Programs:
    """The programs of one set of modules, each built once."""

    def __init__(
        self,
        recipe: Recipe,
        modules: Modules,
        peers: Peers,
        bound: Callable[[str], BoundModelFn],
        build: Callable[[str, BoundModelFn, Any], EstimatorSpec],
    ) -> None:
        """Takes what programs are built of; builds none yet.

        Args:
          recipe: arguments of the Estimator.
          modules: modules that the programs compute with.
          peers: processes that share the strategy.
          bound: function of a mode that returns model_fn in it.
          build: function of a mode, a model_fn that is bound to it, and the specs of a
            batch that builds layers, and returns the EstimatorSpec of a trace.
        """
        self._recipe = recipe
        self._modules = modules
        self._peers = peers
        self._outlined = bound
        self._bound = lambda mode: trace_checks.without_variables(bound(mode))
        self._build = build
        config, strategy = recipe.config, modules.strategy
        # False rather than None, with which eager steps would be compiled as well. And
        # where one trace serves all replicas, on a TPU, XLA compiles all of it anyway.
        as_it_is = config.run_eagerly or has_one_trace(strategy)
        self._jit_compile = False if as_it_is else config.jit_compile
        # The programs of each mode, the one that was used last at the end.
        self._made: dict[str, list[Program]] = collections.defaultdict(list)

    def __call__(self, mode: str, feed: AnyFeed) -> Program:
        """Returns the program for `mode` on `feed`, built where there is none yet.

        Evaluations may have inputs of several shapes. The programs that were used last
        are kept.

        Args:
          mode: one of `ModeKeys`.
          feed: input of the mode.

        Raises:
          SpecError: model_fn breaks the contract.
          TypeError: the input yields labels that model_fn does not take.
        """
        programs = self._made[mode]
        for program in programs:
            if (program.element_spec, program.plan) == (feed.element_spec, feed.plan):
                programs.remove(program)
                programs.append(program)
                return program
        features, labels = feed.element_spec
        if mode == ModeKeys.PREDICT:
            self._check_whole(feed)
            labels = None
        check_model_fn(
            self._recipe.model_fn,
            list(self._modules.by_name),
            has_labels=labels is not None,
        )
        element_spec = features, labels
        with self._compared(mode, element_spec):
            outline = self._build(mode, self._outlined(mode), element_spec)
        declared = {} if mode == ModeKeys.PREDICT else outline.metrics
        host = None
        if mode == ModeKeys.EVAL:
            exchange = None if self._peers.alone else self._peers.gather_bytes
            host = HostMetrics(declared, exchange)
        metrics = MetricSet(declared, outline.scalars, host)
        compiled = {
            ModeKeys.TRAIN: self._train_loop,
            ModeKeys.EVAL: self._eval_loop,
            ModeKeys.PREDICT: self._predict_function,
        }[mode](feed, outline, metrics)
        known = feed.element_spec, feed.plan, metrics, tuple(outline.tensors)
        programs.append(Program(*known, compiled))
        del programs[:-_MOST_PROGRAMS]
        return programs[-1]

    def forget(self, mode: str) -> None:
        """Has the programs of a mode built anew: its modules compute otherwise now."""
        self._made.pop(mode, None)

    def _check_whole(self, feed: AnyFeed) -> None:
        """Checks that features to predict are no part of a tuple of features.

        Raises:
          TypeError: the input yields as a whole what other modes' features are.
        """
        for mode, programs in self._made.items():
            if mode == ModeKeys.PREDICT or not programs:
                continue
            features, _ = programs[-1].element_spec
            if isinstance(features, tuple) and _same(feed.element_spec, features):
                raise RefusedTypeError(
                    f"input_fn yields (a, b) in mode {ModeKeys.PREDICT!r}, which are "
                    f"features a and labels b, and in mode {mode!r} features are such "
                    "a tuple: write dataset.map(lambda a, b: ((a, b), None))."
                )

    @contextlib.contextmanager
    def _compared(self, mode: str, element_spec: Any) -> Iterator[None]:
        """Compares an input with other modes' inputs, first and where the block fails.

        A mistake in one mode's input_fn shows as an error deep in the user's layers;
        the note says on what the same layers worked.
        """
        others = {
            each: programs[-1].element_spec
            for each, programs in self._made.items()
            if programs and each != mode
        }
        for other, spec in others.items():
            if ModeKeys.PREDICT not in (mode, other):
                checks.check_alike(element_spec, mode, spec, other)
        try:
            yield
        except Exception as error:
            for other, spec in others.items():
                if user_errors.is_noted(error) and spec != element_spec:
                    words = checks.in_words({"features": spec[0], "labels": spec[1]})
                    error.add_note(f"In mode {other!r} it worked on {words}.")
            raise

    def _train_loop(
        self, feed: AnyFeed, outline: EstimatorSpec, metrics: MetricSet
    ) -> StepsLoop:
        plan, averages = feed.plan, self._modules.averages
        make_step = functools.partial(
            steps.TrainStep,
            self._bound(ModeKeys.TRAIN),
            self._modules,
            outline,
            metrics,
            alike=plan.alike,
            jit_compile=self._jit_compile,
        )
        step, strategy = make_step(), self._modules.strategy
        norms, every = None, self._recipe.config.save_summary_steps
        if self._recipe.config.log_norms:
            norms = Norms(outline.train_op, self._modules)
        has_servers = isinstance(strategy, ParameterServers)
        averaged, catch_up = averages is not None and not has_servers, None
        if averages is not None and has_servers:
            catch_up = compiled(averages.catch_up)

        def with_averages(step: Any) -> Any:
            return averages.after(step, outline.train_op) if averaged else step

        # By whether summaries, and whether tensors, are taken.
        tensors = self._tensors(outline, feed)
        sets = {
            (False, True): self._summaries(None, tensors=tensors),
            (True, False): self._summaries(outline, norms),
            (True, True): self._summaries(outline, norms, tensors),
        }

        @functools.cache
        def showing(which: tuple[bool, bool]) -> Showing | None:
            if which not in sets or not sets[which]:
                return None
            mine = norms if which[0] else None
            shown = make_step(summaries=sets[which], norms=mine)
            return Showing(with_averages(shown), sets[which])

        def showing_at(step: int, tensors: bool) -> Showing | None:
            return showing((bool(every) and step % every == 0, tensors))

        def at_end(number: tf.Tensor) -> dict[str, tf.Tensor]:
            if catch_up is not None:
                catch_up(tf.identity(self._modules.global_step), number)
            self._modules.global_step.assign(number)
            return step.learning_rates()

        stops = self._recipe.config.on_nan != "warn"
        loop = CompiledLoop(
            plan,
            with_averages(step),
            metrics,
            outline.scalars,
            name=f"mode {ModeKeys.TRAIN!r}",
            peers=self._peers,
            stop_at_nonfinite=stops,
            at_end=at_end,
            at_end_scalars=step.rate_names,
            pass_start=self._modules.driver_state["input_start"],
            run_eagerly=self._recipe.config.run_eagerly,
            showing_at=showing_at,
        )
        if not has_servers:
            return loop
        return CoordinatedLoop(
            loop,
            metrics,
            outline.train_op,
            strategy=strategy,
            at_end=at_end,
            stop_at_nonfinite=stops,
        )

    def _eval_loop(
        self, feed: AnyFeed, outline: EstimatorSpec, metrics: MetricSet
    ) -> CompiledLoop:
        summaries = self._summaries(outline)
        step = steps.EvalStep(
            self._bound(ModeKeys.EVAL),
            self._modules,
            metrics,
            jit_compile=self._jit_compile,
            summaries=summaries,
        )
        showing = Showing(step, summaries, each=True) if summaries else None
        return CompiledLoop(
            feed.plan,
            step,
            metrics,
            outline.scalars,
            name=f"mode {ModeKeys.EVAL!r}",
            peers=self._peers,
            run_eagerly=self._recipe.config.run_eagerly,
            showing_at=lambda *_: showing,
        )

    @property
    def _under_xla(self) -> bool:
        return bool(self._jit_compile) or has_one_trace(self._modules.strategy)

    def _summaries(
        self,
        outline: EstimatorSpec | None,
        norms: Norms | None = None,
        tensors: StepTensors | None = None,
    ) -> SummarySet:
        """Returns the summaries of an outline, if it is given, with what goes along."""
        return SummarySet(
            outline and outline.summaries,
            under_xla=self._under_xla,
            numbers=norms.names if norms else (),
            tensors=tensors,
        )

    def _tensors(self, outline: EstimatorSpec, feed: AnyFeed) -> StepTensors:
        return StepTensors(
            outline.tensors,
            rows=rows_of(feed.element_spec[0]),
            micro_batches=feed.plan.num_micro_batches,
            under_xla=self._under_xla,
        )

    def _predict_function(
        self, feed: AnyFeed, outline: EstimatorSpec, metrics: MetricSet
    ) -> Callable[..., Any]:
        del feed, outline, metrics
        step = steps.PredictStep(self._bound(ModeKeys.PREDICT), self._modules)
        if self._recipe.config.run_eagerly:
            return step
        return tf.function(step, autograph=False, reduce_retracing=True)


def _same(spec: Any, other: Any) -> bool:
    """Returns whether two nests of type specs have one structure, and its dtypes."""
    try:
        tf.nest.assert_same_structure(tuple(spec), tuple(other))
    except (TypeError, ValueError):
        return False
    flat = zip(tf.nest.flatten(spec), tf.nest.flatten(other), strict=True)
    return all(a.dtype == b.dtype for a, b in flat)
