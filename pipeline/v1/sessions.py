# SPDX-License-Identifier: Apache-2.0
"""The session that hooks, listeners and init_fns get: it runs nothing."""

from collections.abc import Mapping
from typing import Any

from .errors import refusal


class Session:
    """Stands for a session.

    Attributes:
      variables: variables by name, in an init_fn; else None.
    """

    graph = None

    def __init__(self, variables: Mapping[str, Any] | None = None) -> None:
        self.variables = variables

    def run(self, *_: Any, **__: Any) -> Any:
        """Refuses to run.

        Raises:
          SpecError: always.
        """
        raise refusal(
            "session.run is called, and the driver has no sessions: expected fetches. Return "
            "SessionRunArgs(tensors) from before_run, and read run_values.results in after_run."
        )

    def should_stop(self) -> bool:
        """Returns False."""
        return False
