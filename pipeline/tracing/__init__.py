"""The tracing of a model_fn: what holds meanwhile, and what the trace shows.

From the bottom up; a file imports only files above it:

    graph_defs      the nodes of a graph, as TensorFlow writes it down
    compiling       functions compiled for one object
    seeds           a run's random numbers, apart from the program's
    initial_values  first values of large tables, in no more memory than they take
    replica_means   Keras' mean losses as means over one replica's batch
    batch_sums      scalars that are sums over the batch
    host_values     tensors of an evaluation, gathered for metrics of all examples
    step_tensors    tensors of a step for hooks, put together of its parts
    summary_states  what of a batch is kept for summaries, and put together
    keras_tables    Keras' embeddings: what they cost, and ids that they would mix up
    trace_checks    warnings of what would be lost or wrong without a word
"""
