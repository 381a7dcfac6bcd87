"""The tasks of a cluster: who is who, and whether they are there.

From the bottom up; a file imports only files above it:

    tf_config   the tasks of TF_CONFIG, and which of them this process is
    slurm       a SLURM job step as a TF_CONFIG
    ports       the address of a task: whether it is free, and who answers there
    rendezvous  the meeting of all tasks before TensorFlow connects them
    watcher     a process that watches its parent, and can end it
    liveness    tasks that reply, and tasks that are stopped or stuck
    server      workers and parameter servers, which serve the chief
    link_watch  the death of tasks while TensorFlow lets no Python run
"""
