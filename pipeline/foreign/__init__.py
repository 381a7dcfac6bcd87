"""What other programs have saved: TensorFlow's checkpoints, and the files of Keras.

From the bottom up; a file imports only files above it:

    slot_names      optimizers' variables among a checkpoint's, by their names
    foreign_reader  checkpoints of other programs, by the names in them
    keras_file      `.keras` and `.weights.h5`, by the places in them
    sources         what a user names, opened
"""
