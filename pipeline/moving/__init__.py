"""Moves programs of tf.estimator over: what to write instead; no TensorFlow.

From the bottom up; a file imports only files above it:

    table  the table of names: what each is here, the line to write, what differs
"""
