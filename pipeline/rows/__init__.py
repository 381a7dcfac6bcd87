"""Gradients of some rows of a variable, and updates that touch these rows alone.

From the bottom up; a file imports only files above it:

    slices       sums, means and norms of gradients that stay rows
    stand_in     some rows of a variable, or of a slot, in its place
    optimizers   Keras' optimizers, on the rows that a gradient has
"""
