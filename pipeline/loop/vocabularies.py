"""Notices vocabularies that differ from those with which a checkpoint was trained."""

import zlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from ..distribute import names


def checksums(modules: Mapping[str, Any]) -> dict[str, int]:
    """Returns a checksum for each layer with a vocabulary, such as StringLookup, by its name."""
    found = {}
    for name, module in modules.items():
        for prefix, layer in names.layers_of(module):
            if hasattr(layer, "get_vocabulary"):
                words = "\n".join(map(str, layer.get_vocabulary()))
                found[f"{name}/{prefix}".rstrip("/")] = zlib.crc32(words.encode())
    return found


def warn_of_changes(before: Mapping[str, int], now: Mapping[str, int], path: str) -> None:
    """Logs a warning for each vocabulary that is not as `before`, in the checkpoint at `path`."""
    for name in sorted(before.keys() & now):
        if before[name] != now[name]:
            logging.warning(
                "The vocabulary of %s is another one than in %s: the rows of embeddings belong to "
                "other words now. Use the vocabulary of that training, or another model_dir.",
                name,
                path,
            )
