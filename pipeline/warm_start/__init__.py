"""Values from elsewhere that a run begins with, where it has no checkpoint itself.

From the bottom up; a file imports only files above it:

    vocabulary           the rows of a table, moved to a new vocabulary
    warm_start_settings  what a user chooses
    schemas              features that mean something else in the other run
    origins              where a value comes from, and how it is made
    slots                what other programs' optimizers have kept
    names                the name there of each variable here
    proposals            names for what has none, by shape
    fitting              for each variable of a model, what a checkpoint has for it
    table                the table in the log
    warm_start           takes values over, once
    freezing             what is left out of training, by name
"""
