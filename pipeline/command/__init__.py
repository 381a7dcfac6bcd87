"""The command: from flags and gin files to a run.

From the bottom up; a file imports only files above it:

    jobs          the jobs evaluate, predict and export; their specs
    gin_reader    the statements of gin files and flags, with their places
    flags         the flags, the commands that they name, and the output
    report        the lines that a job says at its end
    gin_types     values against type annotations
    gin_registry  the names that gin knows: new ones are added here
    gin_checks    checks of names, types, missing arguments and calls
    gin_reach     bindings that nothing reads
    gin_config    the configuration: parsed, checked, built from, and as text
    dry_run       a description of what a command would do
    command_job   a job of the command, configured by gin
"""
