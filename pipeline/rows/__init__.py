"""Gradients of some rows of an embedding or another table, and updates of these alone.

From the bottom up; a file imports only files above it:

    slices           sums, means and norms of gradients that stay rows
    row_update       the update: reads and writes some rows of a variable and its slots;
                     all of them where other workers do so at the same time
    shared_numbers   an optimizer's counter and rate, read once for all variables
    optimizers       whether an optimizer moves only the rows that a gradient has
"""
