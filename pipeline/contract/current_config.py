# SPDX-License-Identifier: Apache-2.0
"""The RunConfig of the run that calls an input_fn or a factory."""

import contextlib
import contextvars
from collections.abc import Iterator

from .run_config import RunConfig

_CONFIG: contextvars.ContextVar[RunConfig | None] = contextvars.ContextVar("config", default=None)


def current_config() -> RunConfig | None:
    """Returns the RunConfig of the run that calls; None outside of a run.

    Functions that gin configures use it in input_fns and factories of modules, where no argument
    can pass it.
    """
    return _CONFIG.get()


@contextlib.contextmanager
def running(config: RunConfig | None) -> Iterator[None]:
    """Makes `config` the current one in the block."""
    token = _CONFIG.set(config)
    try:
        yield
    finally:
        _CONFIG.reset(token)
