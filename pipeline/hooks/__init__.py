"""The hooks of this project, which watch the loop from outside.

From the bottom up; a file imports only files above it:

    saving          a checkpoint when it is due: variables, input, hooks' states
    preemption      the answer to a signal: stop, save, ask for another start
    drawing         the pixels of matrices and captions, for summary_values
    summary_values  summaries as TensorBoard's plugins read them
    summary         scalars, texts and summaries as TensorBoard event files
    stock           a loss of NaN, logs, summaries, a profile
    loss_guard      a loss above a bound, or far above those before it
    limits          a step, seconds, examples, passes after which a training ends
    metric_hook     what goes by one metric of one evaluation, and has patience with it
    plateau         lowers the learning rate where a metric no longer improves
    early_stopping  the end of a training by what its evaluations show

Gin has to know a new file of hooks (`command/gin_registry.py`); the hooks of every
training are made in `driver/trainer.py`.
"""
