"""Reads the environment: TF_CONFIG or, where it is not set, that of a SLURM step."""

import os

from pipeline.cluster import slurm, tf_config
from pipeline.cluster.tf_config import Cluster


def cluster(execution: str) -> Cluster:
    """Returns the tasks that train together, and which of them this process is.

    Args:
      execution: `RunConfig.execution`; only some have clusters in SLURM.

    Raises:
      ValueError: TF_CONFIG or SLURM's variables say of no legal cluster.
    """
    text = os.environ.get("TF_CONFIG", "").strip()
    return tf_config.parse_tf_config(text or slurm.tf_config(execution))
