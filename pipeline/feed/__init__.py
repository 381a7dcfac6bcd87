"""From input_fn to batches for the replicas.

From the bottom up; a file imports only files above it:

    batch         one replica's batch; how a step's batches are taken
    code_digest   digests of arrays and functions, the same in each process
    fingerprint   what an input is made of
    dataset       call input_fn, check and pad what it returns
    input_record  which input a checkpoint had read, and how far
    iterators     skipping, deleting, and what a saved iterator lacks
    feed          call, check, and take batches for the replicas
    distributed   the same for a TPU: batches as arguments
    position      where the training input stands; resume
    workers       the training data of workers that read for themselves
    by_strategy   the way of feeding that a strategy needs
"""
