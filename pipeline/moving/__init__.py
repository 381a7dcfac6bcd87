"""Moves programs of tf.estimator over: what to write instead; no TensorFlow.

From the bottom up; a file imports only files above it:

    table      the table of names: what each is here, the line to write, what differs
    program    a program as it is read; what is refused
    origins    which name of TensorFlow an expression is, whatever the program calls it
    arguments  what of a call means something else, though its name is only replaced
    findings   what is of tf.estimator or TensorFlow 1 in a program, line by line
    edits      the mechanical part, and the marks
    factories  what a function makes as it goes, by factories
    move       one program's findings, edits and marks: the new text
    report     what is said of a program
    job        one file: read, told, written
    __main__   the command
"""
