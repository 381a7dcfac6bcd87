# SPDX-License-Identifier: Apache-2.0
"""`tf.contrib.crf`: linear-chain conditional random fields."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple[Any, Any]:
    """Replaces `tf.contrib.crf.crf_log_likelihood`.

    Args:
      inputs: scores `[batch, time, tags]`.
      tag_indices: tags `[batch, time]`.
      sequence_lengths: lengths `[batch]`.
      transition_params: scores of transitions `[tags, tags]`; None creates `transitions`.

    Returns:
      The log likelihoods `[batch]`, and the scores of transitions.
    """
    if transition_params is None:
        tags = inputs.shape[-1]
        transition_params = tf1.get_variable("transitions", [tags, tags])
    arguments = (sequence_lengths, transition_params)
    score = crf_sequence_score(inputs, tag_indices, *arguments)
    return score - crf_log_norm(inputs, *arguments), transition_params


def crf_sequence_score(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any
) -> Any:
    """Returns the scores `[batch]` of sequences of tags, not normalized."""
    return crf_unary_score(tag_indices, sequence_lengths, inputs) + crf_binary_score(
        tag_indices, sequence_lengths, transition_params
    )


def crf_unary_score(tag_indices: Any, sequence_lengths: Any, inputs: Any) -> Any:
    """Returns the sums `[batch]` of the scores of tags."""
    scores = tf.gather(inputs, tf.cast(tag_indices, tf.int32), batch_dims=2)
    return tf.reduce_sum(scores * _mask(sequence_lengths, tf.shape(inputs)[1]), 1)


def crf_binary_score(tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """Returns the sums `[batch]` of the scores of transitions."""
    tags = tf.cast(tag_indices, tf.int32)
    scores = tf.gather_nd(transition_params, tf.stack([tags[:, :-1], tags[:, 1:]], -1))
    return tf.reduce_sum(scores * _mask(sequence_lengths, tf.shape(tags)[1])[:, 1:], 1)


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """Returns the logarithms `[batch]` of the sums over all sequences of tags."""

    def step(before: Any, now: Any) -> Any:
        scores, kept = now
        after = scores + tf.reduce_logsumexp(before[:, :, tf.newaxis] + transition_params, 1)
        return tf.where(kept, after, before)

    return tf.reduce_logsumexp(_scanned(step, inputs, sequence_lengths)[-1], 1)


def crf_decode(potentials: Any, transition_params: Any, sequence_length: Any) -> tuple[Any, Any]:
    """Replaces `tf.contrib.crf.crf_decode`.

    Returns:
      The best tags `[batch, time]`, int32, zeros after the end; and their scores `[batch]`.
    """

    def step(before: Any, now: Any) -> Any:
        scores, kept = now
        best = scores + tf.reduce_max(before[:, :, tf.newaxis] + transition_params, 1)
        return tf.where(kept, best, before)

    totals = _scanned(step, potentials, sequence_length)
    mask = _mask(sequence_length, tf.shape(potentials)[1])
    last = tf.argmax(totals[-1], 1, output_type=tf.int32)

    def back(tag: Any, now: Any) -> Any:
        before, kept = now
        into = before + tf.gather(tf.transpose(transition_params), tag)
        return tf.where(kept, tf.argmax(into, 1, output_type=tf.int32), tag)

    # The step from t to t - 1 exists if t is within the sequence.
    steps = (totals[:-1], tf.transpose(mask[:, 1:]) > 0)
    tags = tf.scan(back, steps, initializer=last, reverse=True)
    tags = tf.transpose(tf.concat([tags, last[tf.newaxis]], 0))
    return tags * tf.cast(mask, tf.int32), tf.reduce_max(totals[-1], 1)


def viterbi_decode(score: Any, transition_params: Any) -> tuple[list[int], float]:
    """Replaces `tf.contrib.crf.viterbi_decode`, of one sequence `[time, tags]` of NumPy."""
    total, choices = np.asarray(score[0]), []
    for row in score[1:]:
        into = total[:, np.newaxis] + transition_params
        choices.append(into.argmax(0))
        total = row + into.max(0)
    tags = [int(total.argmax())]
    for choice in reversed(choices):
        tags.append(int(choice[tags[-1]]))
    return tags[::-1], float(total.max())


def _mask(lengths: Any, time: Any) -> Any:
    return tf.sequence_mask(lengths, time, tf.float32)


def _scanned(step: Any, inputs: Any, lengths: Any) -> Any:
    """Returns the values `[time, batch, tags]` of a recursion that stops at each length."""
    rows = tf.transpose(inputs, [1, 0, 2])
    mask = tf.transpose(_mask(lengths, tf.shape(inputs)[1]))[..., tf.newaxis] > 0
    rest = tf.scan(step, (rows[1:], mask[1:]), initializer=rows[0])
    return tf.concat([rows[:1], rest], 0)
