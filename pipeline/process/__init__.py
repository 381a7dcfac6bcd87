"""This process: what it says, how it is stopped, how it ends.

From the bottom up; a file imports only files above it:

    exit_codes  what a program exits with, and its last words
    run_log     the command's log and plain Python's, without TensorFlow's chatter
    progress    a line that moves, in a terminal or a notebook
    package     what this package is called and where it lies
    refusals    what this project raises on purpose
    signals     SIGTERM and Ctrl-C: answered, noted
"""
