"""Who computes, on which variables.

From the bottom up; a file imports only files above it:

    tpu               find a TPU, connect, initialise
    coordination      TensorFlow connects workers that train in step
    replicas          who computes, and what they add up
    peers             processes agree before they branch
    sharding          large tables in shards
    parameter_server  the strategy of parameter servers
    executions        RunConfig -> tf.distribute.Strategy: one table, one function a row
    loss_scale        the loss times a number in float16
    variables         every variable of a module, by a name that outlives the process
    modules           factories -> modules under scope; deferred layers; global step
"""
