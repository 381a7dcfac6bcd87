"""Flags and gin files become a run.

From the bottom up; a file imports only files above it:

    jobs          evaluate, predict and export as jobs; the run's configuration on disk
    gin_reader    gin files and flags -> statements with their places
    flags         the flags, and how the command speaks
    report        what a job says at its end
    gin_types     a value against an annotation
    gin_registry  what gin knows by name
    gin_checks    names, types, missing arguments
    gin_reach     bindings that nothing reads
    gin_config    parse, check, build; the configuration as text
    dry_run       what a command would do
    command_job   a job of the command, configured by gin
"""
