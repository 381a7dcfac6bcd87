"""What watches the loop from outside.

From the bottom up; a file imports only files above it:

    saving      when a checkpoint is saved, and who is told
    preemption  a signal: stop, save, ask for another start
    summary     scalars and text as TensorBoard event files
    stock       the stock hooks: stops, a loss of NaN, logs, summaries, a profile
"""
