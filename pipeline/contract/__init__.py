"""The contract: what users write, and what they are given.

From the bottom up; a file imports only files above it:

    user_errors  the errors of the user's code, in few lines
    habits       the habits of tf.estimator's users, taken or told
    checks       checks of the user's values, in one voice
    spec         ModeKeys, EstimatorSpec, TrainOp, metric
    run_config   RunConfig: where and how a model is trained
    hooks        Hook, Run, Report, SavingListener
    params       the user's hyperparameters, and a copy for each function
    calling      the user's functions, called with the arguments that they declare
    model_fn     the call of a model_fn, and checks of its answer
    arguments    checks of the arguments of an Estimator
    exits        the end of a program: signals, exit codes, messages
"""
