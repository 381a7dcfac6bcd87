"""What a training would do, told before anything is trained, written or connected.

From the bottom up; a file imports only files above it:

    findings      mistakes that are certain, and what is to be looked at
    topology      workers, replicas and servers: those that are there, or pretended ones
    examples      the examples of a dataset, each by its digest
    source_files  the files that a dataset reads
    pipelines     input_fn, called as workers would call it, and what it yields
    split         whether the workers' examples are disjoint, cover the data, are even
    inputs        one input: shapes, batches, and its pipelines, as lines
    state         modules and variables: sizes, placement, memory, as lines
    schedule      what is saved, evaluated and exported when, as lines
    inspection    all of this for a training and its evaluations
"""
