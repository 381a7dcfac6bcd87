"""The mistakes of users: found early, and told in few lines.

From the bottom up; a file imports only files above it:

    user_errors   the errors of the user's code, in few lines
    habits        the habits of tf.estimator's users, taken or told
    checks        checks of the user's values, in one voice
    threads       one Estimator in two threads
    shared_state  a factory that returns what it has returned before
    exits         the end of a program: signals, exit codes, messages
"""
