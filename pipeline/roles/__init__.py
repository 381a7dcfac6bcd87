"""The roles of train_and_evaluate: who trains, who evaluates, and when.

From the bottom up; a file imports only files above it:

    keep_best           KeepBest: the checkpoints that stay for their metrics
    specs               TrainSpec, EvalSpec
    rules               hooks that go by evaluations, and which evaluation feeds which
    evaluation          one EvalSpec at work; whether it is due in an evaluator job
    evaluation_along    whether it is due along a training; an evaluator job's, by step
    untold              evaluations that came after the end of training, for its tools
    evaluator           the job that evaluates the checkpoints of a training
    train_and_evaluate  the roles of tasks
    learning_rates      find_learning_rate: a training at growing rates
    replay              replay: a step that went wrong, made again
    first_look          fast_dev_run and overfit_batches: a little of everything
"""
