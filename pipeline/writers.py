# SPDX-License-Identifier: Apache-2.0
"""Metric writers for `RunConfig.metric_writers`."""

from .hooks.file_writers import CsvWriter as CsvWriter
from .hooks.file_writers import JsonLinesWriter as JsonLinesWriter
from .hooks.remote_writers import KubeflowWriter as KubeflowWriter
from .hooks.remote_writers import MlflowWriter as MlflowWriter
from .hooks.remote_writers import PrometheusWriter as PrometheusWriter
from .hooks.remote_writers import WandbWriter as WandbWriter
