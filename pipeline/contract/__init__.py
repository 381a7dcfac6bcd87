"""What users write, and what they are given.

From the bottom up; a file imports only files above it:

    user_errors  where the user's code failed, in few lines
    habits       what users of tf.estimator write, taken or told
    checks       checks of what users give, in one voice
    spec         ModeKeys, EstimatorSpec, TrainOp, metric
    run_config   how to run
    hooks        Hook, Run, Report, SavingListener
    params       the user's hyperparameters, and a copy for each who gets them
    calling      the user's functions get the arguments that they declare
    model_fn     what a model_fn is given by name, and what it may answer
    arguments    what a caller of Estimator gave
    exits        how a program ends: signals, exit codes, messages
"""
