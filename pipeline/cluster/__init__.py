"""Who is who: the tasks of a cluster, and whether they are there.

From the bottom up; a file imports only files above it:

    tf_config   TF_CONFIG -> who is who
    slurm       a SLURM step -> TF_CONFIG
    ports       a task's address, whether it is free, and who answers there
    rendezvous  all tasks meet before TensorFlow connects them
    watcher     a process that watches, and can end the one that started it
    liveness    tasks that reply, and those that are stopped
    server      workers and parameter servers serve the chief
    link_watch  tasks that die while TensorFlow lets no Python run
"""
