# SPDX-License-Identifier: Apache-2.0
"""Notices what has changed since the checkpoint that a training continues."""

import zlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from ..contract import hparams
from ..contract.hooks import RunContext
from ..distribute import names
from .parts import Part, Start


class Changes(Part):
    """Logs options, hyperparameters and vocabularies that differ from the checkpoint."""

    def __init__(self, modules: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Takes the modules, and options and hyperparameters by name as JSON."""
        self._modules = modules
        self._options = options
        self._vocabularies: dict[str, int] = {}

    def restore(self, run: RunContext, start: Start) -> None:
        """Compares with the checkpoint."""
        self._vocabularies = vocabularies_of(self._modules)
        if start.checkpoint is None:
            return
        before = start.states.get("vocabularies", {})
        warn_of_vocabularies(before, self._vocabularies, start.checkpoint)
        for change in hparams.changes(start.states.get("options"), self._options):
            if run.is_chief:
                logging.info("train | changed since that checkpoint: %s", change)

    def state(self) -> Mapping[str, Any]:
        """Returns the values that a restart compares with its own."""
        return {"vocabularies": self._vocabularies, "options": self._options}


def vocabularies_of(modules: Mapping[str, Any]) -> dict[str, int]:
    """Returns a checksum for each layer with a vocabulary, such as StringLookup, by its name."""
    found = {}
    for name, module in modules.items():
        for prefix, layer in names.layers_of(module):
            if hasattr(layer, "get_vocabulary"):
                words = "\n".join(map(str, layer.get_vocabulary()))
                found[f"{name}/{prefix}".rstrip("/")] = zlib.crc32(words.encode())
    return found


def warn_of_vocabularies(before: Mapping[str, int], now: Mapping[str, int], path: str) -> None:
    """Logs a warning for each vocabulary that is not as `before`, in the checkpoint at `path`."""
    for name in sorted(before.keys() & now):
        if before[name] != now[name]:
            logging.warning(
                "The vocabulary of %s is another one than in %s: the rows of embeddings belong to "
                "other words now. Use the vocabulary of that training, or another model_dir.",
                name,
                path,
            )
