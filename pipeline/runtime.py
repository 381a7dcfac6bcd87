"""The modules on one strategy, what they hold, and what is compiled for them."""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline import calling, checkpoint, feeds, modules, steps, user_errors
from pipeline.checkpoint_reader import UnreadableCheckpointError
from pipeline.compiled_loop import CompiledLoop
from pipeline.coordinated_loop import CoordinatedLoop
from pipeline.hooks import Hook, LoggingHook, NanHook, Run, SummaryHook
from pipeline.input_dataset import Source
from pipeline.input_fn import Plan
from pipeline.metrics import MetricSet
from pipeline.model_fn import EstimatorSpec, ModeKeys, SpecError
from pipeline.parameter_server import ParameterServers
from pipeline.peers import Peers
from pipeline.replicas import has_one_trace
from pipeline.run_config import RunConfig
from pipeline.saving import SavingListener
from pipeline.warm_start import WarmStartSettings, warm_start

# Programs that are kept for each mode: more shapes of input are rare, and each holds
# a compiled graph of the model.
_MOST_PROGRAMS = 8


@dataclasses.dataclass(frozen=True)
class Program:
    """What was built for one mode and one shape of input.

    Attributes:
      element_spec: `(features, labels)` specs that it was built for.
      plan: how its batches are taken.
      metrics: those of the mode.
      compiled: the loop over steps; for PREDICT a function of one step's batches.
    """

    element_spec: Any
    plan: Plan
    metrics: MetricSet
    compiled: Any


class Runtime:
    """Modules made once, programs made once a mode.

    Attributes:
      config: the Estimator's.
      modules: on the strategy.
      peers: the processes that train on it.
      values_from: checkpoint path that the variables equal now; None where they are
        initial or were trained since.
      training: whether a training loop is under way.
      features_spec: spec of the features of the last input, or None.
      tracker: keeps `values_from` true while training.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        factories: Mapping[str, Callable[..., Any]],
        strategy: tf.distribute.Strategy,
        config: RunConfig,
        params: Any,
    ) -> None:
        """Calls the factories; the arguments are the Estimator's."""
        self._model_fn = model_fn
        self.config = config
        self.context = {"params": params, "config": config}
        self.modules = modules.Modules(
            factories,
            strategy,
            context=self.context,
            precision=config.precision,
            seed=config.tf_random_seed,
        )
        self.peers = Peers(strategy)
        self.values_from: str | None = None
        self.training = False
        self.features_spec: Any = None
        self._warm_started = False
        self.tracker = Tracker(self)
        self._saver: checkpoint.Saver | None = None
        self._saver_names: dict[str, tuple[str, ...]] = {}
        # None, TensorFlow's choice, would compile eager steps as well; and where there
        # is one trace for all replicas, XLA compiles all of it anyway.
        as_it_is = config.run_eagerly or has_one_trace(strategy)
        self._jit_compile = False if as_it_is else config.jit_compile
        # By mode, those that were used last at the end.
        self._programs: dict[str, list[Program]] = collections.defaultdict(list)

    def bound(self, mode: str) -> steps.BoundModelFn:
        """model_fn in `mode`, as a function of features, labels and step."""
        return modules.bind(self._model_fn, mode, self.modules, self.context)

    def feed(self, input_fn: Callable[..., Any], mode: str) -> feeds.AnyFeed:
        """Calls `input_fn` for this strategy's replicas; see `feeds.make`."""
        micro_batches = self.config.gradient_accumulation_steps
        feed = feeds.make(
            Source(input_fn, mode, self.context),
            strategy=self.modules.strategy,
            peers=self.peers,
            num_micro_batches=micro_batches if mode == ModeKeys.TRAIN else 1,
        )
        self.features_spec = feed.element_spec[0]
        return feed

    def program(self, mode: str, feed: feeds.AnyFeed) -> Program:
        """The program for `mode` on `feed`, built unless it was for the like before.

        Several evaluations may be of several shapes; those used last are kept.

        Raises:
          SpecError: model_fn breaks the contract.
          TypeError: the input yields labels that model_fn does not take.
        """
        programs = self._programs[mode]
        for program in programs:
            if (program.element_spec, program.plan) == (feed.element_spec, feed.plan):
                programs.remove(program)
                programs.append(program)
                return program
        features, labels = feed.element_spec
        if mode == ModeKeys.PREDICT:
            labels = None
        calling.check_model_fn(
            self._model_fn, list(self.modules.by_name), has_labels=labels is not None
        )
        element_spec = features, labels
        with self._compared(mode, element_spec):
            outline = self.build(mode, self.bound(mode), element_spec)
        declared = {} if mode == ModeKeys.PREDICT else outline.metrics
        metrics = MetricSet(declared, outline.scalars)
        compiled = {
            ModeKeys.TRAIN: self._train_loop,
            ModeKeys.EVAL: self._eval_loop,
            ModeKeys.PREDICT: self._predict_function,
        }[mode](feed.plan, outline, metrics)
        programs.append(Program(feed.element_spec, feed.plan, metrics, compiled))
        del programs[:-_MOST_PROGRAMS]
        return programs[-1]

    @contextlib.contextmanager
    def _compared(self, mode: str, element_spec: Any) -> Iterator[None]:
        """Compares an input with those of other modes, first and where it fails."""
        others = {
            each: programs[-1].element_spec
            for each, programs in self._programs.items()
            if programs and each != mode
        }
        for other, spec in others.items():
            if ModeKeys.PREDICT not in (mode, other):
                calling.check_alike(element_spec, mode, spec, other)
        try:
            yield
        except Exception as error:
            for other, spec in others.items():
                if user_errors.is_noted(error) and spec != element_spec:
                    words = calling.in_words({"features": spec[0], "labels": spec[1]})
                    error.add_note(f"In mode {other!r} it worked on {words}.")
            raise

    def build(
        self, mode: str, model_fn: steps.BoundModelFn, element_spec: Any
    ) -> EstimatorSpec:
        """Builds what `model_fn` uses and nobody built yet.

        Args:
          mode: that `model_fn` is bound to.
          model_fn: of features, labels and step.
          element_spec: `(features, labels)` specs.

        Raises:
          SpecError: it adds variables that a training run under way would not save.
        """
        before = set(self.modules.named_variables())
        outline = self.modules.build(model_fn, element_spec)
        added = sorted(set(self.modules.named_variables()) - before)
        if added and self.training:
            raise SpecError(
                f"model_fn uses {added} in mode {mode!r} and not in TRAIN, so that "
                "they would be in no checkpoint: call those layers in TRAIN too, or "
                "build them in their factory."
            )
        if added:
            self.values_from = None
        return outline

    def start(self, warm_start_from: str | WarmStartSettings | None) -> None:
        """Without a checkpoint: the values to start warm from, once."""
        if warm_start_from is not None and not self._warm_started:
            warm_start(self.modules.named_state(), warm_start_from)
            self.modules.spread_seeds()
            self._warm_started = True

    def load_newest(
        self, path: str, *, together: bool = False
    ) -> tuple[str, list[str]]:
        """Sets the modules to a checkpoint, or to the newest before it that is sound.

        Args:
          path: path prefix of the newest.
          together: all peers call this, and take the same one.

        Returns:
          The one that was loaded, and those that could not be.

        Raises:
          CheckpointMismatchError: it is of another model; nothing was changed.
          UnreadableCheckpointError: so are all before it.
        """
        unreadable: list[str] = []
        while True:
            problem = None
            try:
                self.load(path)
            except UnreadableCheckpointError as error:
                problem = error
            sound = problem is None
            if self.peers.all(sound) if together else sound:
                return path, unreadable
            unreadable.append(path)
            words = problem or f"another process cannot read checkpoint {path}"
            older = checkpoint.before(path)
            if older is None:
                raise UnreadableCheckpointError(
                    f"{words} There is none before it either: to begin anew at step 0, "
                    "choose another model_dir."
                ) from problem
            logging.warning(
                "checkpoint | %s Going on from step %d, of %s.",
                words,
                checkpoint.step_of(older),
                older,
            )
            path = older

    def run(self, max_step: int | None = None) -> Run:
        """Returns what hooks see of a run that begins where the modules stand.

        Args:
          max_step: where it ends; None where the input decides.
        """
        return Run(
            self.config.model_dir,
            self.modules.step,
            max_step,
            leads=self.peers.leads,
            agree=self.peers.any,
            progress=self.config.progress,
        )

    def hooks(self, hooks: Sequence[Hook], saving: Hook) -> list[Hook]:
        """The config's hooks and the caller's, in the order in which they are called.

        Args:
          hooks: the caller's.
          saving: comes last, so that a checkpoint holds what the others did.
        """
        config = self.config
        result = [self.tracker, NanHook(fail_on_nan_loss=config.on_nan == "stop")]
        if config.log_step_count_steps:
            result.append(LoggingHook(config.log_step_count_steps))
        if config.save_summary_steps:
            result.append(SummaryHook(config.save_summary_steps))
        result.extend(hooks)
        if config.save_checkpoints_steps != 0:
            result.append(saving)
        return result

    def saver(self) -> checkpoint.Saver:
        """Writes the modules' checkpoints; the same one while they hold the same."""
        state = self.modules.named_state()
        names = {module: tuple(named) for module, named in state.items()}
        if self._saver is None or self._saver_names != names:
            config = self.config
            self._saver_names = names
            self._saver = checkpoint.Saver(
                config.model_dir,
                state,
                keep_max=config.keep_checkpoint_max,
                keep_every_n_hours=config.keep_checkpoint_every_n_hours,
                asynchronous=config.async_checkpoint,
            )
        return self._saver

    def load(self, path: str) -> None:
        """Sets the modules to a checkpoint, unless they hold it already.

        Raises:
          CheckpointMismatchError: it is of another model; nothing was changed.
          UnreadableCheckpointError: it is damaged; nothing was changed.
          RuntimeError: a training loop would lose its weights.
        """
        if self.values_from == path:
            return
        if self.training:
            raise RuntimeError(
                f"checkpoint {path} cannot be loaded while this Estimator trains; "
                "evaluate it in an Estimator of its own."
            )
        checkpoint.restore(
            self.modules.named_state(), path, unbuilt=self.modules.unbuilt_prefixes()
        )
        self.modules.spread_seeds()
        self.values_from = path

    def _train_loop(
        self, plan: Plan, outline: EstimatorSpec, metrics: MetricSet
    ) -> CompiledLoop | CoordinatedLoop:
        step = steps.TrainStep(
            self.bound(ModeKeys.TRAIN),
            self.modules,
            outline,
            metrics,
            alike=plan.alike,
            jit_compile=self._jit_compile,
        )

        def at_end(number: tf.Tensor) -> dict[str, tf.Tensor]:
            self.modules.global_step.assign(number)
            return step.learning_rates()

        stops = self.config.on_nan == "stop"
        loop = CompiledLoop(
            plan,
            step,
            metrics,
            outline.scalars,
            name=f"mode {ModeKeys.TRAIN!r}",
            peers=self.peers,
            stop_at_nonfinite=stops,
            at_end=at_end,
            at_end_scalars=step.rate_names,
            pass_start=self.modules.driver_state["input_start"],
            run_eagerly=self.config.run_eagerly,
        )
        strategy = self.modules.strategy
        if not isinstance(strategy, ParameterServers):
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
        self, plan: Plan, outline: EstimatorSpec, metrics: MetricSet
    ) -> CompiledLoop:
        step = steps.EvalStep(
            self.bound(ModeKeys.EVAL),
            self.modules,
            metrics,
            jit_compile=self._jit_compile,
        )
        return CompiledLoop(
            plan,
            step,
            metrics,
            outline.scalars,
            name=f"mode {ModeKeys.EVAL!r}",
            peers=self.peers,
            run_eagerly=self.config.run_eagerly,
        )

    def _predict_function(
        self, plan: Plan, outline: EstimatorSpec, metrics: MetricSet
    ) -> Callable[..., Any]:
        del plan, outline, metrics
        step = steps.PredictStep(self.bound(ModeKeys.PREDICT), self.modules)
        if self.config.run_eagerly:
            return step
        return tf.function(step, autograph=False, reduce_retracing=True)


class Tracker(Hook, SavingListener):
    """Knows of which checkpoint the variables hold the values while training."""

    def __init__(self, runtime: Runtime) -> None:
        """
        Args:
          runtime: whose `values_from` it keeps.
        """
        self._runtime = runtime

    def after_loop(self, run: Run) -> None:
        self._runtime.values_from = None

    def after_save(self, run: Run) -> None:
        self._runtime.values_from = checkpoint.path_of(run.model_dir, run.step)
