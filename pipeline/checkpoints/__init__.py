"""The values of variables on disk, and what is saved beside them.

From the bottom up; a file imports only files above it:

    checkpoint_files    the files of a checkpoint, and whether they are complete
    checkpoint_reader   the contents of a checkpoint, checked when they are read
    foreign_checkpoint  checkpoints of other programs, and how to take their values
    settings            settings of factories, kept against the values of a checkpoint
    lease               the readers of a checkpoint, which keep it from deletion
    retention           the checkpoints that stay; deletes the others at each save
    checkpoint          saving and strict restoring; the format
    checkpoint_path     the checkpoint that a caller asked for
    hook_states         the states of hooks, saved with each checkpoint
    holding             the origin of the modules' values: a checkpoint, or none
"""
