"""Refuses `python -m pipeline.moving`: this version has no command that rewrites programs."""

import sys

from .cli.report import failed
from .errors import UserError

MESSAGE = (
    "python -m pipeline.moving is not in this version; a later one will have it. "
    "docs/from_tf_estimator.md has the replacement of each name."
)

if __name__ == "__main__":
    sys.exit(failed(UserError(MESSAGE), debug=False))
