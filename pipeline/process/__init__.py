"""This process: its log, its signals, its end.

From the bottom up; a file imports only files above it:

    exit_codes    the exit codes of programs, and their last words
    import_hook   the first import of a module, in a context
    later         what Keras imports for few programs, left for those
    run_log       the log of a run, without TensorFlow's chatter
    progress      a line that moves, in a terminal or a notebook
    package       the name of this package, and its place
    metric_names  whether more of a metric is better, by its name
    durations     durations as people write them: 1h30m; steps that take so long
    refusals      the errors that this project raises on purpose
    deletion      objects that a thread deletes, as it takes long
    signals       answers to SIGTERM and Ctrl-C, and notes of them
"""
