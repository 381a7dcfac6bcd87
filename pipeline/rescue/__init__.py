"""The rescue of a training from a step that went wrong.

From the bottom up; a file imports only files above it:

    bad_batches  the batches that a loss went wrong on, as files
    restoring    back to a checkpoint, and on without the batches that led there
    findings     what a replay of a bad step finds, and the lines that tell it
    step_graph   what the graph of a step knows of its operations
    traced_step  a step that also tells what each of its operations computes
    suspects     which examples of a batch do it alone
    replaying    a bad step made again from its files
"""
