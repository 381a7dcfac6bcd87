"""The rescue of a training from a step that went wrong.

From the bottom up; a file imports only files above it:

    bad_batches  the batches that a loss went wrong on, as files
    restoring    back to a checkpoint, and on without the batches that led there
"""
