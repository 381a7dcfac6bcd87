"""The numbers that processes exchange."""

import math

import tensorflow as tf

from gin_estimator.distribute.replicas import Replicas


class FirstOfTwo(Replicas):
    """The first of two processes, without the second one's numbers."""

    def _summed(self, rows):
        return rows


def test_an_infinite_number_of_one_process_does_not_hide_those_of_others():
    replicas = FirstOfTwo(tf.distribute.get_strategy(), total=2, num_processes=2)
    assert replicas.gather([5, math.inf]) == [[5.0, math.inf], [0.0, 0.0]]
