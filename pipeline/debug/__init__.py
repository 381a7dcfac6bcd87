"""Tools for programs that are not right yet: inspections, short runs, replays of bad batches."""
