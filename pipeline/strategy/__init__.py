"""The strategy: who computes, on which variables.

From the bottom up; a file imports only files above it:

    tpu               a TPU: found, connected, initialised
    coordination      the connection of workers that train in step
    replicas          the replicas of a strategy, and sums over them
    peers             the agreement of processes before they branch; a lost one, named
    sharding          large tables in shards
    parameter_server  the strategy of parameter servers
    strategies        RunConfig -> tf.distribute.Strategy: one table, one function a row
    loss_scale        mixed precision: Keras' policy, the factor of a loss in float16
    averages          the averages of variables, and their exchange with the weights
    variables         the variables of a module, by names that outlive the process
    modules           modules from factories, with all variables; the global step

The words of --execution are in `cluster/tf_config.py`. What a strategy cannot say
itself is in `replicas.py` and in `feed/by_strategy.py`.
"""
