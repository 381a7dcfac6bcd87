"""What docs/performance.md quotes: measurements, each a command that prints a table."""
