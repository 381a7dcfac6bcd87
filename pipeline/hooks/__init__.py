"""The hooks of this project, which watch the loop from outside.

From the bottom up; a file imports only files above it:

    saving      the steps at which a checkpoint is saved; its listeners
    preemption  the answer to a signal: stop, save, ask for another start
    summary     scalars and text as TensorBoard event files
    stock       stops, a loss of NaN, logs, summaries, a profile
"""
