# SPDX-License-Identifier: Apache-2.0
"""Files that are written to a local folder first, since their values change while they upload."""

import os
import shutil
import tempfile
from collections.abc import Callable

import tensorflow as tf

from . import storage_watchdog


def write(path: str, function: Callable[[str], None]) -> None:
    """Writes files whose paths begin with `path`, at once or in the thread of `storage_watchdog`.

    Args:
      path: path of a folder, or prefix of paths.
      function: writes to such a path.
    """
    folder, name = os.path.split(path)
    if not storage_watchdog.is_watched(path):
        tf.io.gfile.makedirs(folder)
        function(path)
        return
    local = tempfile.mkdtemp(prefix="upload-")
    function(os.path.join(local, name))
    storage_watchdog.call(path, _upload, local, folder)


def _upload(local: str, folder: str) -> None:
    for parent, _, names in os.walk(local):
        target = os.path.normpath(os.path.join(folder, os.path.relpath(parent, local)))
        target = target.replace(":/", "://", 1)  # normpath has removed a slash.
        tf.io.gfile.makedirs(target)
        for name in names:
            tf.io.gfile.copy(os.path.join(parent, name), f"{target}/{name}", overwrite=True)
    shutil.rmtree(local)
