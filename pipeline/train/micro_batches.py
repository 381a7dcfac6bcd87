# SPDX-License-Identifier: Apache-2.0
"""Sums over the micro-batches of a step.

`compute(batch, opens=...)` returns the totals and the gradients of a replica's micro-batch, which
may open the step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..data.batch import Batch
from ..distribute.replicas import Replicas
from . import indexed_slices
from .fetches import Fetches
from .totals import Totals

# Totals and gradients.
Sums = tuple[Totals, Any]
Compute = Callable[..., Sums]


def sum_of(
    compute: Compute,
    batches: Sequence[Sequence[Batch]],
    replicas: Replicas,
    fetches: Fetches | None,
) -> list[Sums]:
    """Returns the sums by local replica, in cross-replica context.

    A loop in the graph keeps one micro-batch in memory at a time. Placeholders are at
    the end; one process leaves them out, several wait for each other in each.
    """
    first, *others = batches
    later = functools.partial(compute, opens=False)
    number = _num_with_data(others) if replicas.num_processes == 1 else len(others)
    sums = replicas.run(compute, first)
    if fetches:  # Parts of different sizes cannot be added up by a loop.
        for index, batch in enumerate(others):
            added = tf.cond(
                index < number,
                lambda batch=batch: replicas.run(later, batch),
                lambda sums=sums: _nothing(sums, fetches),
            )
            sums = [_plus(*pair) for pair in zip(sums, added, strict=True)]
        return sums

    def body(index: tf.Tensor, sums: Any) -> Any:
        added = replicas.run(later, _choose(index, others))
        return index + 1, tf.nest.map_structure(indexed_slices.add, sums, added)

    state = tf.constant(0), sums
    _, sums = tf.while_loop(
        lambda index, _: index < number,
        body,
        state,
        shape_invariants=tf.nest.map_structure(indexed_slices.spec_of_sum, state),
        parallel_iterations=1,
    )
    return sums


def sum_on_replica(compute: Compute, batches: Sequence[Batch]) -> Sums:
    """Returns the sums over one replica's micro-batches, which have one static shape."""
    first, later = compute(batches[0]), functools.partial(compute, opens=False)
    if first[0].fetched:  # A loop would add them up.
        return functools.reduce(_plus, [first, *map(later, batches[1:])])
    stacked = tf.nest.map_structure(
        lambda *leaves: None if leaves[0] is None else tf.stack(leaves), *batches
    )

    def body(index: tf.Tensor, sums: Any) -> Any:
        batch = tf.nest.map_structure(lambda x: None if x is None else x[index], stacked)
        return index + 1, tf.nest.map_structure(tf.add, sums, later(batch))

    state = tf.constant(1), first
    return tf.while_loop(lambda index, _: index < len(batches), body, state)[1]


def _choose(index: tf.Tensor, batches: Sequence[Sequence[Batch]]) -> Sequence[Batch]:
    """Returns one micro-batch, by an index in the graph."""
    flat = [tf.nest.flatten(each, expand_composites=True) for each in batches]
    # Labels and shares may be None, which a branch cannot return.
    tensors = [[leaf for leaf in each if leaf is not None] for each in flat]
    chosen = iter(tf.switch_case(index, [lambda each=each: each for each in tensors]))
    leaves = [None if leaf is None else next(chosen) for leaf in flat[0]]
    return tf.nest.pack_sequence_as(batches[0], leaves, expand_composites=True)


def _num_with_data(batches: Sequence[Sequence[Batch]]) -> Any:
    """Returns how many micro-batches are not placeholders on all replicas."""
    shares = [[batch.share for batch in each] for each in batches]
    return sum(
        1 if any(share is None for share in each) else tf.cast(tf.reduce_max(each), tf.int32)
        for each in shares
    )


def _plus(sums: Sums, added: Sums) -> Sums:
    return sums[0].plus(added[0]), tf.nest.map_structure(indexed_slices.add, sums[1], added[1])


def _nothing(sums: Sequence[Sums], fetches: Fetches) -> list[Sums]:
    """Returns the sums of a micro-batch without examples."""
    sums = [(totals.sums(), gradients) for totals, gradients in sums]
    zeros = tf.nest.map_structure(indexed_slices.zeros_like, sums)
    return [(totals._replace(fetched=fetches.zeros()), gradients) for totals, gradients in zeros]
