"""The values of variables on disk, and what is saved beside them.

From the bottom up; a file imports only files above it:

    checkpoint_files    the files of a checkpoint; which are complete
    checkpoint_reader   what a checkpoint holds, checked when it is read
    foreign_checkpoint  other programs' checkpoints: what they hold, and how to take it
    configured          what factories have set, where a checkpoint has another value
    lease               who reads a checkpoint
    retention           which checkpoints stay
    checkpoint          save and strict restore; the format
    checkpoint_path     the checkpoint that a caller asked for
    warm_start          values from another run's checkpoint
    hook_states         what hooks know, saved with each checkpoint
    holding             what modules hold: which checkpoint, or what is in none
"""
