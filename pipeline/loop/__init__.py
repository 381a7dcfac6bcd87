"""One step, and many of them in one call.

From the bottom up; a file imports only files above it:

    gradients         gradients with their weights
    metrics           metric states as sums of increments
    losses            weighted means that add up over anything
    updates           what is done with gradients: turns, loss scales, clipping
    steps             one step on every replica: loss, gradients, update
    packing           a loop's tensors as few vectors, one a dtype
    compiled_loop     many steps in one call, from boundary to boundary
    coordinated_loop  the same, by workers to whom the chief hands pieces
    watchers          the hooks of a training, and what happened between two calls
    eval_loop         an evaluation, a few steps at a time
    predictions       one step at a time, then example by example
"""
