"""The roles of train_and_evaluate: who trains, who evaluates, and when.

From the bottom up; a file imports only files above it:

    specs               TrainSpec, EvalSpec
    evaluator           the job that evaluates the checkpoints of a training
    train_and_evaluate  the roles of tasks; evaluations along a training
"""
