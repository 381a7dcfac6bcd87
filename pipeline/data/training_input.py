# SPDX-License-Identifier: Apache-2.0
"""The training input: one iterator, which a restart opens after the last example trained on.

A restart opens it in the first of these ways that is possible:

1. The data are others: begin another pass (`RunConfig.changed_input` may choose otherwise).
2. input_fn takes `first_batch`: call it for the data that are left.
3. The iterator was saved, and the pipeline is the same: restore it with its shuffle buffer.
4. Call input_fn under the same seed, and read and drop the examples that were read before.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from ..model_dir import local_copy
from . import fingerprint
from .batch import as_pair, num_rows
from .input import Input, delete
from .open_input import OpenInput
from .position import Position, begins
from .same_batches import Agreement


class TrainingInput(OpenInput):
    """The live iterator of a training run.

    Attributes:
      iterator: iterator over the data that are left.
      end_step: global step at which data of known length end; else infinite.
      place: where the input was opened, for the log.
    """

    def __init__(
        self,
        data: Input,
        step: int,
        *,
        is_new: bool = False,
        checkpoint: str | None = None,
        record: Mapping[str, Any] | None = None,
        changed_input: str = "auto",
    ) -> None:
        """Opens the input after the examples that an earlier run has trained on.

        Args:
          data: the input.
          step: global step.
          is_new: whether the dataset of `data` was not iterated yet.
          checkpoint: path prefix of the checkpoint that the run continues from, or None.
          record: what `save` returned for it; None if there is none.
          changed_input: `RunConfig.changed_input`.

        Raises:
          UserValueError: the data are others, and `changed_input` is 'error'.
        """
        self._data, self._replicas = data, data.replicas
        self._is_new = is_new
        self._continues = step > 0 and (checkpoint is not None or record is not None)
        saved = Position.of(record) if self._continues else None
        self._start = self._position = self._at_start(saved)
        is_exact = -1 not in self._start.pipelines and not data.service
        self._saves = is_exact and not data.starts_anywhere
        self._examples = 0  # Of this process in this pass.
        self._agreement: Agreement | None = None
        self._num_unwatched = 0  # Elements of this pass that were left out.
        self._stepped = False  # Whether this training made a step of this pass.
        self.iterator: Any = None
        self.place = "its beginning"
        if not self._continues:
            self._open(self._watched(data.iterate()), step)
            return
        if saved is None:
            logging.info("The checkpoint has no position in the input: skipping %d steps.", step)
            saved = Position(self._start.seed, elements=step * data.elements_per_step)
        # Of one process too: the global batches that it reads may have been split before.
        change = saved.change(self._start, splits=data.source.yields_global_batches)
        if begins(change, changed_input):
            self._begin(step, saved.number + 1)
        else:
            self._continue(step, saved, checkpoint, is_same=change == "")

    def add(self, num_steps: int, num_examples: int) -> None:
        """Counts steps that were made, and the examples that this process read for them."""
        self._stepped = self._stepped or num_steps > 0
        elements = self._position.elements + num_steps * self._data.elements_per_step
        self._position = dataclasses.replace(self._position, elements=elements)
        self._examples += num_examples
        if self._agreement is not None:
            self._agreement.check(elements - self._num_unwatched)

    def skip(self, step: int) -> list[Any] | None:
        """Reads the batches of one step; see `OpenInput.skip`."""
        elements = self._data.read(self.iterator)
        if not self._replicas.any(bool(elements)):
            return None
        # Of global batches, the chief counts what all processes have read together.
        counts = self._replicas.is_chief or not self._data.splits
        rows = sum(int(num_rows(as_pair(each)[0])) for each in elements) if counts else 0
        self.add(1, rows)
        self._find_end(step)
        return elements

    @property
    def num_batches(self) -> int:
        """Number of steps in this pass whose batches were read."""
        return self._position.elements // self._data.elements_per_step

    def has_ended(self, step: int, num_passes: float | None) -> bool:
        """Returns whether a restart is at the end of a pass."""
        return step == self.end_step

    def next_pass(self, step: int, *, after_rest: bool, num_passes: float | None = None) -> bool:
        """Begins another pass at the end of the data; see `OpenInput.next_pass`."""
        if not self._position.elements:
            raise self._data.source.empty_error()
        if num_passes is not None:
            may_begin = self._position.number + 1 < num_passes
        else:
            may_begin = self._continues and (after_rest or not self._stepped)
        if not may_begin:
            return False
        logging.info("train | the input ended at step %d: another pass begins", step)
        self._begin(step, self._position.number + 1)
        return True

    def save(self, checkpoint: str | None) -> dict[str, Any]:
        """Writes the iterator of a checkpoint, if one is given; every process must call it.

        Returns:
          The position, as JSON.
        """
        if self._saves and checkpoint is not None:
            iterator = tf.train.Checkpoint(iterator=self.iterator)
            local_copy.write(self._path(checkpoint), iterator.write)
        examples = tuple(int(number) for [number] in self._replicas.gather([self._examples]))
        return dataclasses.asdict(dataclasses.replace(self._position, examples=examples))

    def close(self) -> None:
        """Deletes the iterator."""
        iterators, self.iterator = [self.iterator], None
        delete(iterators)

    def _at_start(self, saved: Position | None) -> Position:
        """Returns the start of the first pass."""
        source = self._data.source
        # Without tf_random_seed, the seed of a run is that of the model_dir where it began.
        # A seed of the program is that of its first start as well: it may come from a clock.
        seed, base = own = (source.seed, source.base)
        if saved and source.config.tf_random_seed is None:
            seed, base = saved.seed, saved.base
        dataset = self._data.unpadded
        if (seed, base) != own:
            dataset = source.dataset(self._data.context, seed=seed, base=base)
        own = [fingerprint.of_sources(dataset), fingerprint.of_pipeline(dataset)]
        sources, pipelines = zip(*self._replicas.gather(own), strict=True)
        return Position(
            seed,
            sources=tuple(map(int, sources)),
            pipelines=tuple(map(int, pipelines)),
            base=base,
        )

    def _begin(self, step: int, number: int) -> None:
        """Begins a pass."""
        self._position = dataclasses.replace(self._start, number=number)
        self._examples, self._stepped, self._continues = 0, False, False
        self.close()
        self._open(self._call(), step)

    def _call(self, first_batch: int = 0) -> Any:
        """Returns an iterator over the pass, without its first elements."""
        seed, base, number = (getattr(self._position, n) for n in ("seed", "base", "number"))
        base = None if base is None else base + number
        source, is_new = self._data.source, self._is_new
        self._is_new = False
        if is_new and not first_batch and (seed + number, base) == (source.seed, source.base):
            return self._watched(self._data.iterate())
        opened = self._data.open(seed=seed + number, base=base, first_batch=first_batch)
        return self._watched(opened, first_batch)

    def _watched(self, opened: tuple[Any, Agreement | None], first: int = 0) -> Any:
        iterator, self._agreement = opened
        self._num_unwatched = first
        return iterator

    def _open(self, iterator: Any, step: int) -> None:
        """Sets the iterator, and finds the end of the pass."""
        self.iterator = iterator
        self._find_end(step)

    def _find_end(self, step: int) -> None:
        """Agrees on the end of data of known length."""
        self.end_step, data = math.inf, self._data
        if data.lengths is not None:
            left = data.lengths[self._replicas.process] - self._position.elements
            steps = self._replicas.gather([data.steps_in(max(left, 0))])
            self.end_step = step + int(max(number for [number] in steps))

    def _continue(
        self, step: int, saved: Position, checkpoint: str | None, *, is_same: bool
    ) -> None:
        """Opens the rest of a pass; `is_same`: the pipeline is certainly the same."""
        data, replicas = self._data, self._replicas
        self._position = dataclasses.replace(
            self._start,
            seed=saved.seed,
            base=saved.base,
            number=saved.number,
            elements=saved.elements,
        )
        examples = saved.num_read(replicas.process, replicas.num_processes, splits=data.splits)
        iterator = None
        if data.starts_anywhere:
            elements = saved.elements
            if not is_same and saved.examples:
                size = next((num_rows(as_pair(each)[0]) for each in data.unpadded), 1)
                elements = -(-examples // int(size))
            iterator = self._call(elements)
        elif is_same and self._saves and checkpoint is not None:
            elements, iterator = saved.elements, self._restored(checkpoint)
        if iterator is None:
            iterator = self._call()
            reason = data.why_inexact
            if reason and examples:
                logging.warning("train | reading %d examples again, since %s", examples, reason)
            goal = {"examples": examples} if saved.examples else {"elements": saved.elements}
            elements, examples = data.skip(iterator, **goal)
        self._position = dataclasses.replace(self._position, elements=elements)
        # Of global batches, the chief counts what all processes have read together.
        self._examples = examples if replicas.is_chief or not data.splits else 0
        self.place = f"example {examples} of pass {saved.number + 1}"
        self._open(iterator, step)

    def _restored(self, checkpoint: str) -> Any:
        """Returns the saved iterator, or None in all processes if one cannot read it."""
        iterator, path, problem = self._call(), self._path(checkpoint), None
        try:
            tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
        except (tf.errors.OpError, AssertionError, IndexError, ValueError) as error:
            problem = str(error).partition("\n")[0]
            logging.warning("The position %s cannot be restored: %s", path, problem)
        return None if self._replicas.any(problem is not None) else iterator

    def _path(self, checkpoint: str) -> str:
        directory, name = os.path.split(checkpoint)
        process = f"{self._replicas.process}-of-{self._replicas.num_processes}"
        return os.path.join(directory, "input", f"{name}.{process}")
