"""The modules on one strategy, what they hold, and what is compiled for them.

A runtime goes from a recipe to something that can be run: `feed` calls input_fn,
`program` builds and compiles a mode for it, `load` and `start` set the values. The
roles (`trainer`, `estimator`, `exporting`) call these in an order of their own.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_files, checkpoint_path
from pipeline.checkpoints.holding import Holding
from pipeline.checkpoints.retention import KeptSteps
from pipeline.checkpoints.settings import Configured
from pipeline.contract.averages import AVERAGE
from pipeline.contract.hooks import Run
from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec, ModeKeys
from pipeline.contract.train_op import SpecError
from pipeline.driver.programs import Program, Programs
from pipeline.driver.recipe import Recipe
from pipeline.feed import by_strategy
from pipeline.feed.dataset import Source
from pipeline.feed.feed import AnyFeed
from pipeline.hooks.plateau import LearningRate
from pipeline.process.refusals import RefusedRuntimeError, RefusedValueError
from pipeline.strategy import modules
from pipeline.strategy.peers import Peers
from pipeline.strategy.sharding import shards_of
from pipeline.strategy.variables import finalize
from pipeline.tools import description
from pipeline.warm_start import schemas
from pipeline.warm_start.warm_start import WarmStart

# Copies of less are not worth a line in the log.
_MUCH_MEGABYTES = 1_000


class Runtime:
    """One set of modules on one strategy, with the programs that were built for it.

    Modules are made once, a program once for each mode and shape of input.

    Attributes:
      recipe: arguments of the Estimator.
      config: RunConfig of the recipe.
      context: `params` and `config`, for the user's functions.
      modules: modules on the strategy.
      peers: processes that share the strategy.
      holding: knowledge of what the variables hold now.
      features_spec: spec of the features of the last input, or None.
      configured: values that factories have set, such as learning rates.
    """

    def __init__(
        self,
        recipe: Recipe,
        strategy: tf.distribute.Strategy,
        *,
        seeded: bool = True,
    ) -> None:
        """Calls the factories.

        Args:
          recipe: arguments of the Estimator.
          strategy: strategy under whose scope the modules are made.
          seeded: whether initial values come of the config's seed, where it has one.
        """
        self.recipe = recipe
        self.config = config = recipe.config
        self.context = recipe.context
        self.modules = modules.Modules(
            recipe.factories,
            strategy,
            context=self.context,
            precision=config.precision,
            seed=config.tf_random_seed if seeded else None,
            average=config.average,
        )
        self.configured = Configured(self.modules)
        self._warm_start = WarmStart(self.modules)
        self.peers = Peers(strategy)
        self.holding = Holding(self.modules)
        self.features_spec: Any = None
        self._rates: dict[str, LearningRate] = {}
        self._described = False
        self._saver: checkpoint.Saver | None = None
        self._saver_names: dict[str, tuple[str, ...]] = {}
        self._said_copied = False
        self._programs = Programs(
            recipe, self.modules, self.peers, self.bound, self.build
        )

    def bound(self, mode: str) -> BoundModelFn:
        """Returns model_fn in `mode`, as a function of features, labels and step."""
        return modules.bind(self.recipe.model_fn, mode, self.modules, self.context)

    def feed(self, input_fn: Callable[..., Any], mode: str) -> AnyFeed:
        """Calls `input_fn` for this strategy's replicas, see `by_strategy.make`."""
        micro_batches = self.config.gradient_accumulation_steps
        feed = by_strategy.make(
            Source(input_fn, mode, self.context),
            strategy=self.modules.strategy,
            peers=self.peers,
            num_micro_batches=micro_batches if mode == ModeKeys.TRAIN else 1,
        )
        self.features_spec = feed.element_spec[0]
        return feed

    def program(self, mode: str, feed: AnyFeed) -> Program:
        """Returns the program for `mode` on `feed`, see `Programs`."""
        return self._programs(mode, feed)

    def build(
        self, mode: str, model_fn: BoundModelFn, element_spec: Any
    ) -> EstimatorSpec:
        """Builds the layers that `model_fn` calls and that are not built yet.

        Args:
          mode: mode that `model_fn` is bound to.
          model_fn: function of features, labels and step.
          element_spec: specs `(features, labels)` of a batch.

        Returns:
          The EstimatorSpec of a trace.

        Raises:
          SpecError: it adds variables that a training under way would not save.
        """
        before = set(self.modules.named_variables())
        outline = self.modules.build(model_fn, element_spec)
        self.configured.note()
        added = sorted(set(self.modules.named_variables()) - before)
        if added and self.holding.is_live:
            raise SpecError(
                f"model_fn uses {added} in mode {mode!r} and not in TRAIN, so that "
                "they would be in no checkpoint: call those layers in TRAIN too, or "
                "build them in their factory."
            )
        if added:
            self.holding.after_build()
        return outline

    def rates(self, *, wanted: bool) -> dict[str, LearningRate]:
        """Returns the optimizers' learning rates by module, for hooks to change.

        The steps of training are traced anew, as they then read schedules by a factor.

        Args:
          wanted: whether a hook is to change them; else none is returned, and schedules
            are as they were made.
        """
        if not wanted:
            for rate in self._rates.values():
                rate.begin_anew()
            return {}
        if not self._rates:
            self._rates = {
                name: LearningRate(
                    module, self.modules.strategy, self.configured.rate_of
                )
                for name, module in self.modules.by_name.items()
                if isinstance(module, keras.optimizers.Optimizer)
            }
            if any(rate.is_schedule for rate in self._rates.values()):
                self._programs.forget(ModeKeys.TRAIN)
        return self._rates

    def start(self) -> None:
        """Sets the initial values of a run without a checkpoint, warm or as they are.

        Raises:
          RuntimeError: the modules hold other values already.
        """
        if not self.holding.initial:
            raise RefusedRuntimeError(
                f"{self.config.model_dir} was emptied a moment ago, by whoever else "
                "writes there: call this again, to begin anew with initial values."
            )
        if self.recipe.warm_start_from is not None:
            self.holding.before_change()
            self._warm_start(self.recipe.warm_start_from)
            if self.peers.leads:
                schemas.say_differences(
                    self.recipe.warm_start_from, self.config.model_dir
                )

    def check_started(self) -> None:
        """Checks that all peers, which call this, have the same initial values.

        Raises:
          ValueError: a function of the user's has set others in another process.
        """
        settings = self.recipe.warm_start_from
        if settings is None or not (
            settings.init_fn or settings.var_name_to_vocab_info
        ):
            return
        if not self.peers.same(self._warm_start.initialized):
            raise RefusedValueError(
                "WarmStartSettings' init_fn, or a backup_initializer, has set other "
                "values in this process than in another: draw random values with a "
                "seed, np.random.default_rng(1)."
            )

    def load_newest(
        self, path: str, *, together: bool = False
    ) -> tuple[str, list[str]]:
        """Sets the modules to a checkpoint, or to the newest before it that is sound.

        Args:
          path: path prefix of the newest checkpoint.
          together: whether all peers call this, and are to load the same one.

        Returns:
          The path prefix that was loaded, and the ones that cannot be read.

        Raises:
          CheckpointMismatchError: it is of another model; nothing was changed.
          UnreadableCheckpointError: no checkpoint can be read.
        """
        agreed = self.peers.all if together else bool
        return checkpoint_path.newest_sound(path, self.load, agreed=agreed)

    def run(self, max_step: int | None = None) -> Run:
        """Returns the Run, for hooks, of a run that begins at the modules' step.

        Args:
          max_step: global step at which it ends; None where the input decides.
        """
        return Run(
            self.config.model_dir,
            self.modules.step,
            max_step,
            leads=self.peers.leads,
            agree=self.peers.any,
            from_leader=self.peers.from_leader,
            progress=self.config.progress,
        )

    def parameter_table(self) -> list[str]:
        """Returns the table of parameters for the log; empty after the first call."""
        if self._described or not self.peers.leads:
            return []
        self._described = True
        return description.parameter_table(self.modules)

    def saver(self) -> checkpoint.Saver:
        """Returns the modules' saver, a new one where variables were added."""
        state = self.modules.named_state()
        names = {module: tuple(named) for module, named in state.items()}
        if self._saver is None or self._saver_names != names:
            config = self.config
            self._saver_names = names
            self._saver = checkpoint.Saver(
                config.model_dir,
                self._to_save(),
                keep_max=config.keep_checkpoint_max,
                keep_every_n_hours=config.keep_checkpoint_every_n_hours,
                kept_steps=KeptSteps.of(config),
                asynchronous=self._saves_beside_training(),
            )
        return self._saver

    def _saves_beside_training(self) -> bool:
        """Returns whether saves are asynchronous; where much would be copied, says so.

        What lies on a CPU is written from there, or from a copy beside it; of what lies
        on a GPU there is a copy in any case.
        """
        chosen, megabytes = self.config.async_checkpoint, _megabytes(self.modules)
        much = megabytes >= _MUCH_MEGABYTES and self.config.save_checkpoints_steps != 0
        beside = not much if chosen is None else chosen
        if much and chosen is not False and self.peers.leads and not self._said_copied:
            self._said_copied = True
            text = "checkpoint | training waits for a save of %s MB, as a copy of it "
            text += (
                "would take as much memory: RunConfig(async_checkpoint=True) takes it"
            )
            if beside:
                text = "checkpoint | an asynchronous save takes a copy of %s MB: "
                text += "RunConfig(async_checkpoint=False) takes none"
            logging.info(text, f"{megabytes:,.1f}")
        return beside

    def save_weights(self, directory: str) -> None:
        """Saves the values of now in another folder than model_dir; all peers call it.

        Raises:
          StorageError: the folder cannot be written.
        """
        self.modules.synchronize()
        if self.peers.leads:
            checkpoint_files.make_directory(directory)
            checkpoint.Saver(directory, self._to_save()).save(self.modules.step)

    def _to_save(self) -> dict[str, Any]:
        """Returns the modules' state, with what the factories have set."""
        state = self.modules.named_state()
        driver = state[checkpoint.DRIVER] | self.configured.record()
        return {**state, checkpoint.DRIVER: driver}

    def load(self, path: str) -> None:
        """Sets the modules to a checkpoint, unless they hold it already.

        Raises:
          CheckpointMismatchError: it is of another model; nothing was changed.
          UnreadableCheckpointError: it is damaged; nothing but initial values was
            changed.
          RuntimeError: a training is under way, and would lose its weights.
        """
        self.settle()
        if self.holding.equals(path):
            return
        if self.holding.is_live:
            raise RefusedRuntimeError(
                f"checkpoint {path} cannot be loaded while this Estimator trains; "
                "evaluate it in an Estimator of its own."
            )
        state, unbuilt = self.modules.named_state(), self.modules.unbuilt_prefixes()
        with self.holding.loading() as in_place:
            saved = checkpoint.restore(state, path, unbuilt=unbuilt, in_place=in_place)
        if self.modules.averages is not None:
            self.modules.averages.loaded(saved)
        # Until what follows has succeeded too, the modules equal no checkpoint.
        self.holding.after_change()
        self.modules.spread_seeds()
        finalize(self.modules.by_name.values())
        self.configured.loaded(path)
        self.holding.after_load(path)

    @contextlib.contextmanager
    def weights(self, which: str) -> Iterator[None]:
        """Has the modules hold these weights in the block, and their own after it.

        Args:
          which: 'live' or 'average'. Without a step in it, the average is what is live.
        """
        averages = self.modules.averages if which == AVERAGE else None
        if averages is None:
            yield
            return
        # A prediction that is under way goes on with the weights that it began with.
        self.holding.before_change()
        with averages.in_place():
            yield

    def has_average(self) -> bool:
        """Returns whether any step is in an average of the modules."""
        averages = self.modules.averages
        return averages is not None and averages.num_steps > 0

    def average_in_words(self) -> str:
        """Returns what the average stands for now, for the log."""
        if self.has_average():
            number = self.modules.averages.num_steps
            return f"the average of {number} {'step' if number == 1 else 'steps'}"
        return "no step is in the average as yet: it is what is live"

    def take_average(self) -> None:
        """Sets the modules to the average; what they held is read again when needed."""
        if self.has_average():
            self.holding.before_load()
            self.holding.after_change()
            self.modules.averages.take_over()

    def settle(self) -> None:
        """Ends an exchange of weights that was broken off, see `Averages.settle`."""
        if self.modules.averages is not None:
            self.modules.averages.settle()

    def anew(self, *, seeded: bool = True) -> "Runtime":
        """Returns a new runtime of this one's recipe, on the same strategy.

        Args:
          seeded: see `Runtime`.
        """
        made = Runtime(self.recipe, self.modules.strategy, seeded=seeded)
        made.features_spec = self.features_spec
        return made


def _megabytes(built: modules.Modules) -> float:
    """Returns the size of all variables that lie in the memory of CPUs."""
    shards = [each for v in built.named_variables().values() for each in shards_of(v)]
    return sum(
        (shard.shape.num_elements() or 0) * shard.dtype.size / 1e6
        for shard in shards
        if "CPU" in shard.device
    )
