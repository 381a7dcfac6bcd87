"""Reads the environment: TF_CONFIG or, where it is not set, that of a SLURM step."""

import os

from pipeline.cluster import slurm, tf_config
from pipeline.cluster.tf_config import Cluster


def cluster(execution: str) -> Cluster:
    """Returns the tasks that train together: TF_CONFIG's, or a SLURM step's."""
    text = os.environ.get("TF_CONFIG", "").strip()
    return tf_config.parse_tf_config(text or slurm.tf_config(execution))
