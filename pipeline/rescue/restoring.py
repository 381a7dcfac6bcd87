"""Goes back where a step went wrong, and trains on without the batch that led there.

NanHook and users' hooks ask by `run.leave_out(step, reason)`. As going back
is exact, the same steps come again, and one of them is at fault:

    go back to the newest checkpoint before the bad step
    train to the step before it; on the way look whether weights are still finite
    if they are: the bad step's batch is at fault, and is left out
    else: the batches since they last were finite are; go back again, leave these out

Where the next batch is bad at once again and no batch held NaN or Inf itself, the
weights were bad already: as many batches before are left out, too, so that a block of
them doubles from time to time.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint
from pipeline.contract.hooks import BadStep, Hook, Run
from pipeline.contract.run_config import RunConfig
from pipeline.feed.batch import LeftOut
from pipeline.feed.feed import AnyFeed, Feed
from pipeline.hooks.stock import NanLossDuringTrainingError
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedValueError
from pipeline.rescue import bad_batches
from pipeline.strategy.modules import Modules


@dataclasses.dataclass
class _Block:
    """Batches to leave out.

    Attributes:
      num: number of batches.
      reason: text for the log.
      ends: whether the run ends once they are written.
    """

    num: int
    reason: str
    ends: bool = False


class Restoring(Hook):
    """Leaves out the batches of steps that went wrong; the last hook of a training.

    It does nothing, and has no state, before a hook asks for it. The checkpoints keep
    what was left out and what is planned: a training that is killed and goes on ends
    as one that was not. All processes decide alike: they see the same steps, and their
    weights are equal.
    """

    def __init__(
        self,
        modules: Modules,
        save_weights: Callable[[str], None],
        config: RunConfig,
        feed: AnyFeed,
    ) -> None:
        """Takes what it acts on; nothing is left out yet.

        Args:
          modules: modules that are trained.
          save_weights: function of a folder that writes a checkpoint there; all
            processes call it.
          config: RunConfig of the training.
          feed: training input.
        """
        self._modules = modules
        self._save_weights = save_weights
        self._max_restores = config.max_restores
        self._saves = config.save_checkpoints_steps != 0
        self._can_leave_out = isinstance(feed, Feed)
        self._data: Any = None
        self._restores = 0
        # By the step after which they come, the batches to leave out there.
        self._blocks: dict[int, _Block] = {}
        self._left_out: list[dict[str, Any]] = []
        # The step whose cause is looked for, and the last step with finite weights.
        self._suspect: BadStep | None = None
        self._sound: int | None = None
        # Variables that are never finite, as far as the checkpoints go back.
        self._never_finite: set[str] = set()
        self._done: set[int] = set()
        self._saved: set[str] = set()
        self._told: set[tuple[int, int]] = set()
        self._model_dir, self._leads = "", True
        self._went_back = False
        # A block that may begin before the oldest checkpoint.
        self._earliest: int | None = None

    def added_to(self, hooks: Sequence[Hook]) -> list[Hook]:
        """Returns the hooks, with this one at the end where one may ask for it.

        Args:
          hooks: hooks of the training.

        Raises:
          ValueError: the strategy or the RunConfig does not allow what a hook may ask
            for; says what to write.
        """
        asking = [type(hook).__name__ for hook in hooks if hook.leaves_out]
        if not asking:
            return list(hooks)
        instead = f"write {asking[0]}(on='stop')"
        if asking[0] == "NanHook":
            instead = "write RunConfig(on_nan='stop')"
        if not self._saves:
            raise RefusedValueError(
                "RunConfig.save_checkpoints_steps is 0, so that there is no checkpoint "
                "to go back to from a bad step: write save_checkpoints_steps=1000, or "
                f"{instead}."
            )
        if not self._can_leave_out:
            raise RefusedValueError(
                f"{asking[0]} is to leave out batches, which is not possible on a TPU, "
                "where no position of the input is saved, nor with parameter servers, "
                "whose workers' steps do not come again in the same order: "
                f"{instead}."
            )
        return [*hooks, self]

    @contextlib.contextmanager
    def reading(self, data: Any) -> Iterator[None]:
        """Leaves batches of these training data out, while the block runs."""
        self._data = data
        try:
            yield
        finally:
            self._data = None

    def begin(self, run: Run) -> None:
        run.leaves_out = True
        self._model_dir, self._leads = run.model_dir, run.leads
        self._done, self._left_out, self._sound = set(), [], None
        if self._earliest is not None and self._earliest < run.step:
            # The checkpoint before it is gone: the block begins here.
            block = self._blocks.pop(self._earliest)
            block.num -= run.step - self._earliest
            self._blocks[run.step] = block
        self._earliest = None
        self._look(run)

    def restore(self, run: Run, state: Any) -> None:
        self._left_out = list(state["left_out"])
        if self._went_back:
            return  # What this process has planned since goes further.
        self._restores = state["restores"]
        self._blocks = {at: _Block(num, why) for at, num, why in state["planned"]}

    def state(self) -> Any:
        """Returns what was left out, and what is to be; None where there is nothing."""
        if not self._restores:
            return None
        blocks = sorted(self._blocks.items())
        return {
            "restores": self._restores,
            "left_out": self._left_out,
            "planned": [[at, b.num, b.reason] for at, b in blocks if not b.ends],
        }

    def next_step(self, step: int) -> int | None:
        wanted = {*self._blocks, *self._places()}
        return min((each for each in wanted if each > step), default=None)

    def after_loop(self, run: Run) -> None:
        if run.going_back is not None:
            return
        if run.bad_step is not None:
            self._restore(run, run.bad_step)
        else:
            self._look(run)

    def leave_out_at(self, step: int) -> None:
        """Leaves out what is planned after a step; called before training goes on.

        Args:
          step: global step.

        Raises:
          NanLossDuringTrainingError: the run is to end here.
        """
        block = self._blocks.get(step)
        if block is None or step in self._done:
            return
        self._done.add(step)
        folder = bad_batches.folder_of(self._model_dir, step + 1)
        for _ in range(block.num):
            batch = self._data.leave_out()
            if batch is not None:
                self._note(folder, step + 1, batch, block.reason)
        if self._leads:
            records = [each for each in self._left_out if each["step"] == step + 1]
            bad_batches.describe(folder, records)
        if folder not in self._saved:
            self._save_weights(folder)
            self._saved.add(folder)
        if block.ends:
            raise NanLossDuringTrainingError(
                f"{block.reason}. {self._words()}. The batch, and the weights before "
                f"it, are in {folder}. No checkpoint was saved after it. To see which "
                f"operation it was: --job=replay --bad_batch={paths.shown(folder)}"
            )

    def _restore(self, run: Run, bad: BadStep) -> None:
        """Plans what to leave out for a bad step, as far as is known; goes back."""
        if not bad.ends:
            self._count(bad)
        before = bad.step - 1
        last, self._suspect = self._blocks.get(before), None
        if last is None:
            self._suspect = bad
        else:
            records = [each for each in self._left_out if each["step"] == bad.step]
            if not all(each["not_finite"] for each in records):
                before = self._earliest = max(0, before - last.num)
            self._plan(before, bad.step, bad)
        self._go_back(run, bad.reason, before)

    def _count(self, bad: BadStep) -> None:
        if self._restores >= self._max_restores:
            raise NanLossDuringTrainingError(
                f"{bad.reason}, after {self._restores} times of going back "
                f"(max_restores={self._max_restores}). {self._words()}. Lower the "
                "learning rate, clip the gradient (TrainOp(..., clip_norm=1.0)), look "
                f"at the batches in {bad_batches.FOLDER}, or write RunConfig("
                f"max_restores={2 * self._max_restores + 1})."
            )
        self._restores += 1

    def _look(self, run: Run) -> None:
        """Finds out, at steps before a bad one, which batches are at fault."""
        if self._suspect is None or run.step not in self._places(run.first_step):
            return
        bad, step = self._suspect, run.step
        broken = self._broken() - self._never_finite
        if not run.agree(bool(broken)):
            self._sound = step
            if step == bad.step - 1:
                self._suspect = None
                self._plan(step, bad.step, bad)
            return
        first = next(iter(sorted(broken)), "in another process")
        reason = f"weights are not finite after step {step}: {first}"
        if self._sound is not None:
            self._suspect = None
            self._plan(self._sound, step, dataclasses.replace(bad, reason=reason))
            self._go_back(run, reason, self._sound)
        elif checkpoint.before(checkpoint.path_of(run.model_dir, step)) is None:
            self._never_finite = broken
            self._look(run)
        else:
            self._go_back(run, reason, step - 1)

    def _places(self, first: int | None = None) -> set[int]:
        """Returns the steps at which weights are looked at: ever closer to the bad one.

        Args:
          first: step at which the run began, which is one of them; None for no such.
        """
        if self._suspect is None:
            return set()
        before, distance = self._suspect.step - 1, 1
        found = {before}
        while before - distance > 0:
            found.add(before - distance)
            distance *= 2
        return found if first is None else {*found, first}

    def _plan(self, first: int, last: int, bad: BadStep) -> None:
        """Plans to leave out all batches of the steps after `first` up to `last`.

        Blocks between them become a part of this one; later ones come earlier by the
        steps that are no more made.
        """
        num = fewer = last - first
        blocks: dict[int, _Block] = {}
        for at, block in self._blocks.items():
            if at < first:
                blocks[at] = block
                continue
            self._forget(at)
            if at <= last:
                num += block.num
            else:
                blocks[at - fewer] = block
        self._blocks = {**blocks, first: _Block(num, bad.reason, bad.ends)}

    def _forget(self, at: int) -> None:
        """Deletes the files of a block that is another one now."""
        folder = bad_batches.folder_of(self._model_dir, at + 1)
        self._saved.discard(folder)
        if self._leads and tf.io.gfile.isdir(folder):
            tf.io.gfile.rmtree(folder)

    def _go_back(self, run: Run, reason: str, step: int) -> None:
        """Asks to go back to the newest checkpoint of this step or an earlier one."""

        def choose() -> str:
            paths = checkpoint.committed(run.model_dir)
            older = [path for path in paths if checkpoint.step_of(path) <= step]
            return older[-1] if older else paths[0]

        self._went_back = True
        run.go_back(reason, choose)

    def _broken(self) -> set[str]:
        """Returns the names of weights that hold NaN or Inf."""
        local = self._modules.strategy.experimental_local_results
        return {
            name
            for name, variable in self._modules.named_variables().items()
            if variable.trainable
            and variable.dtype.is_floating
            and not bool(tf.reduce_all(tf.math.is_finite(local(variable)[0])))
        }

    def _note(self, folder: str, step: int, batch: LeftOut, reason: str) -> None:
        """Writes a batch that was left out to its folder, and into the log."""
        holds = [place for e in batch.elements for place in bad_batches.not_finite(e)]
        record = {
            "step": step,
            "batch": batch.number,
            "digest": bad_batches.digest_of(batch.elements),
            "not_finite": holds,
            "reason": reason,
        }
        self._left_out.append(record)
        path = bad_batches.write(folder, batch)
        if self._leads and (step, batch.number) not in self._told:
            self._told.add((step, batch.number))
            logging.warning(
                "train | %s is left out: %s | %s", _named(record), reason, path
            )

    def _words(self) -> str:
        if not self._left_out:
            return "No batch was left out"
        return f"Left out: {'; '.join(map(_named, self._left_out))}"


def _named(record: Mapping[str, Any]) -> str:
    """Returns a batch in words: "batch 71 of its pass (step 70, digest 1f3a...)"."""
    holds = "".join(f", NaN or Inf in {place}" for place in record["not_finite"])
    where = f"step {record['step']}, digest {record['digest']}{holds}"
    return f"batch {record['batch']} of its pass ({where})"
