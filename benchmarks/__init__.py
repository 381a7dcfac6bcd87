"""Measurements, each one command: `python -m benchmarks.overhead`.

All are ratios of two ways to do the same work in one process, which take turns. Each line
shows the median ratio, the least and the most, and the bar that the project wants to hold.
"""
