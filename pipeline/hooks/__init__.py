"""The hooks of this project, which watch the loop from outside.

From the bottom up; a file imports only files above it:

    saving          the steps at which a checkpoint is saved; its listeners
    preemption      the answer to a signal: stop, save, ask for another start
    drawing         pictures with captions, side by side; matrices of counts
    summary_values  summaries as TensorBoard's plugins read them
    summary         scalars, texts and summaries as TensorBoard event files
    stock           stops, a loss of NaN, logs, summaries, a profile
    limits          the seconds and the passes after which a training ends
    metric_hook     what goes by one metric of one evaluation, and has patience with it
    plateau         lowers the learning rate where a metric no longer improves
    early_stopping  the end of a training by what its evaluations show
"""
