"""What holds while TensorFlow traces a model_fn, and what the trace shows.

From the bottom up; a file imports only files above it:

    compiling      functions that TensorFlow compiles for one object
    seeds          a run's random numbers, apart from the program's
    replica_means  Keras' mean losses are means over one replica's batch
    batch_sums     whether a scalar is a sum over the batch
    trace_checks   what a trace shows that would be lost without a word
"""
