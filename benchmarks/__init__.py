"""The measurements that docs/performance.md quotes; each command prints a table."""
