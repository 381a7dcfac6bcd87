"""The files of tests that take longest: they begin first, so that none is left alone.

`--dist loadfile` gives a file to whoever is free. One of minutes that begins last keeps
one core busy, and the other waits for it. Where a file has become long, add it; seconds
of processor time, by `--durations`, are what it is sorted by.
"""

FILES = (
    # One process at a time, beside which those of clusters run.
    "faults_test.py",
    "launch_training_test.py",
    "conformance_test.py",
    "multi_worker_test.py",
    "pipeline/strategy/parameter_server_test.py",
    "pipeline/contract/exits_test.py",
    "pipeline/cluster/liveness_test.py",
    "installed_test.py",
    "pipeline/driver/xla_check_test.py",
    "pipeline/launcher/launch_ends_test.py",
    "docs_test.py",
    "pipeline/cluster/link_watch_test.py",
    "serving_test.py",
    "benchmarks/checkpoint_test.py",
)


def rank(path):
    """Returns where a file stands in the order, all that are short at the end."""
    found = (i for i, file in enumerate(FILES) if str(path).endswith(f"tests/{file}"))
    return next(found, len(FILES))
