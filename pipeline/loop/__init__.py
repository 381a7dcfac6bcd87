"""The training loop: its parts, the schedule, and the evaluations between calls."""
