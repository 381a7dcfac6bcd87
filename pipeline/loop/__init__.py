"""The loop: one step, and many steps in one call.

From the bottom up; a file imports only files above it:

    gradients         gradients with their weights, dense or by row
    metrics           the states of metrics, as sums of increments
    losses            weighted means, as sums that add up over anything
    updates           updates by gradients: turns, loss scale, clipping, optimizer
    steps             one step on every replica: loss, gradients, update
    stretch           the steps up to one boundary in a graph, their totals packed
    compiled_loop     many steps in one call, from boundary to boundary
    coordinated_loop  many steps by workers, to whom the chief hands pieces
    watchers          the hooks of a training, and their windows
    eval_loop         an evaluation, a few steps at a time
    predictions       predictions as they are asked for, example by example
"""
