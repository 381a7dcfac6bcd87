"""The files of a model_dir.

Knows no TensorFlow objects but its file system.

From the bottom up; a file imports only files above it:

    atomic_file        small files that are there as a whole or not at all
    storage            refusals of a file system, as errors that say what to do
    heartbeat          files that their owner renews, and their age
    claim              the claim by which one process at a time trains
    end_marker         the end of training and its reason, for the evaluator
    evaluation_record  the record of evaluations, a line each
    best               the best checkpoints by that record, which are to stay
    paths              paths in one form, so that equal places have equal texts
"""
