# SPDX-License-Identifier: Apache-2.0
"""The session that hooks, listeners and init_fns get: it returns the global step alone."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .errors import refusal
from .variables import GlobalStep


class Session:
    """Stands for a session.

    Attributes:
      variables: variables by name, in an init_fn; else None.
    """

    graph = None

    def __init__(
        self,
        variables: Mapping[str, Any] | None = None,
        step: Callable[[], int] | None = None,
    ) -> None:
        self.variables, self._step = variables, step

    def run(self, fetches: Any = None, *_: Any, **__: Any) -> Any:
        """Returns the global step, for hooks; refuses to run anything else.

        Raises:
          SpecError: `fetches` is not the global step, or the session is not that of a hook.
        """
        if isinstance(fetches, GlobalStep) and self._step is not None:
            return np.int64(self._step())
        raise refusal(
            "session.run is called, and the driver has no sessions: expected fetches. Return "
            "SessionRunArgs(tensors) from before_run, and read run_values.results in after_run."
        )

    def should_stop(self) -> bool:
        """Returns False."""
        return False
