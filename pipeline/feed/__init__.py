"""The feed: from input_fn to batches for the replicas.

From the bottom up; a file imports only files above it:

    batch         one replica's batch: its tensors and its number of rows
    code_digest   digests of arrays and functions, the same in each process
    fingerprint   the parts of an input, by which it is known again
    dataset       the dataset of an input_fn, checked and padded
    input_record  the input that a checkpoint had read, and how far
    iterators     iterators that are made and skipped; what a saved one lacks
    feed          batches for the replicas of this process
    tpu_feed      batches for a TPU's replicas, as arguments
    position      the position of the training input, saved and found again
    servers_feed  the training data of workers that read for themselves
    by_strategy   the way of feeding that a strategy needs
"""
