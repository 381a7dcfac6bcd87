"""A cluster of processes on this machine; no TensorFlow.

From the bottom up; a file imports only files above it:

    process_group  processes of which none outlives this one
    task_lines     the output of several processes, as whole lines
    processes      tasks that run and end together: signals, failures
"""
