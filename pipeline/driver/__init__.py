"""The driver: Estimator, and the roles of train_and_evaluate.

From the bottom up; a file imports only files above it:

    recipe              the arguments that an Estimator was made of
    runtime             the modules on one strategy, and their compiled functions
    runtime_pair        the runtime that trains, and the runtime that evaluates
    start               the claim, the values and the input of a training
    trainer             the loop of one training, from stop to stop
    xla_check           refusals of a TPU's compiler, found on a CPU
    exporting           a runtime's PREDICT as a SavedModel, at a checkpoint or live
    estimator           Estimator, the facade
    specs               TrainSpec, EvalSpec
    evaluator           the job that evaluates the checkpoints of a training
    train_and_evaluate  the roles of tasks; evaluations along a training
"""
