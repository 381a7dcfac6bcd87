"""Where a training runs, by the names that flags and RunConfig have for it."""

# Those that a cluster of several tasks is for.
OF_CLUSTERS = ("multi_worker", "parameter_server")
EXECUTIONS = ("single_host", *OF_CLUSTERS, "tpu")
