"""The tasks of a cluster: who is who, and whether they are there.

From the bottom up; a file imports only files above it:

    tf_config    the tasks that TF_CONFIG names, and which of them this process is
    slurm        a SLURM job step as a TF_CONFIG
    environment  the reading of TF_CONFIG, or else of the SLURM step
    ports        the address of a task: whether it is free, and who answers there
    rendezvous   the meeting of all tasks before TensorFlow connects them
    devices      the names of this machine's devices, checked
    watcher      a process that watches its parent, and can end it
    liveness     tasks that are stopped or stuck, not dead ones; ends this one
    server       workers and parameter servers, which serve the chief
    link_watch   the death of tasks while TensorFlow connects, and Python waits

The death of a task that trains in step is noticed in `strategy/peers.py`, and ends this
one by `mistakes/exits.py`.
"""
