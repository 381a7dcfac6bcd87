"""The facade and the roles.

From the bottom up; a file imports only files above it:

    recipe              what an Estimator was made of
    runtime             the modules on one strategy and what is compiled for them
    runtime_pair        the runtime that trains and the one that evaluates
    start               before the first step: claim, load, find the input
    trainer             the loop: one training, from stop to stop
    xla_check           what a TPU's compiler would refuse, found on a CPU
    exporting           a runtime's PREDICT, at a checkpoint or live, as a SavedModel
    estimator           the facade
    specs               TrainSpec, EvalSpec
    evaluator           a job that evaluates the checkpoints of a training
    train_and_evaluate  the roles; evaluations along a training
"""
