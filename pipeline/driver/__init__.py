"""The driver: Estimator, which trains, evaluates, predicts and exports.

From the bottom up; a file imports only files above it:

    recipe              the arguments that an Estimator was made of
    programs            a mode's step in its compiled loop, one for each shape of input
    runtime             the modules on one strategy: built, loaded, saved
    runtime_pair        the runtime that trains, and the runtime that evaluates
    start               the claim, the values and the input of a training
    along               the interface of evaluations along a training; their order
    trainer             the loop of one training, from stop to stop
    xla_check           refusals of a TPU's compiler, found on a CPU
    evaluating          an evaluation of a checkpoint, or of what is live
    exporting           a runtime's PREDICT as a SavedModel, at a checkpoint or live
    estimator           Estimator, the facade
"""
