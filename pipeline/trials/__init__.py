"""A sweep: trials of one command with other values; no TensorFlow.

From the bottom up; a file imports only files above it:

    search         what is searched: names, and the values that each may have
    goal           the metric that says which trial is best, and where it is read
    sweep_flags    the flags of a sweep
    folder         a sweep's folder: whose it is, what was begun in it
    definition     what makes the trials comparable: command, space and goal
    study          the trials on disk, and who suggests the next one; by Optuna
    table          what is said of the trials: lines, a table, a file
    hparams        the columns of TensorBoard's HParams tab
    started_trial  a trial that runs: its process, and what is known of it
    runner         starts trials, one after the other or several at a time, to their end
    sweep_jobs     what a sweep is asked for: run, print commands, collect
"""
