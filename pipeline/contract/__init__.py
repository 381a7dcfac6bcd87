"""The contract: what users write, and what they are given.

From the bottom up; a file imports only files above it:

    train_op     TrainOp: an optimizer, its variables, its turns; its Rate
    summaries    image, histogram, ...; summed up by tracing/, drawn by hooks/
    metrics      metric, host_metric; the names of what is reported
    spec         ModeKeys, EstimatorSpec
    averages     ExponentialAverage, StochasticWeightAverage
    hooks        Hook, Run, Report, SavingListener, Tool
    params       the user's hyperparameters, and a copy for each function
    run_config   RunConfig: where and how a model is trained
    calling      the user's functions, called with the arguments that they declare
    model_fn     the call of a model_fn, and checks of its answer
    arguments    checks of the arguments of an Estimator
"""
