"""The test files that take longest, which begin first.

`--dist loadfile` gives the next file to a process that is free. If a file of minutes
began last, one core would work on it and the other would wait. Add a file here when it
becomes long. The order is that of processor seconds, as `--durations` shows them.
"""

FILES = (
    # It runs one process at a time, beside which the files of clusters run.
    "faults_test.py",
    "launch_training_test.py",
    "conformance_test.py",
    "steering_conformance_test.py",
    "multi_worker_test.py",
    "pipeline/strategy/parameter_server_test.py",
    "pipeline/cluster/liveness_test.py",
    "memory_test.py",
    "pipeline/mistakes/exits_test.py",
    "replica_layers_test.py",
    "resume_test.py",
    "pipeline/hooks/loss_guard_test.py",
    "installed_test.py",
    "pipeline/driver/xla_check_test.py",
    "pipeline/launcher/launch_ends_test.py",
    "docs_test.py",
    "pipeline/cluster/link_watch_test.py",
    "pipeline/roles/evaluator_roles_test.py",
    "serving_test.py",
    "benchmarks/checkpoint_test.py",
)


def rank(path):
    """Returns the place of a file in the order; all short files share the last."""
    found = (i for i, file in enumerate(FILES) if str(path).endswith(f"tests/{file}"))
    return next(found, len(FILES))
