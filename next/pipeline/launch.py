"""Starts a cluster on this machine.

python -m pipeline.launch --workers=2 -- --gin_file=gin/digits.gin --model_dir=runs/two
python -m pipeline.launch --workers=2 --ps=1 --evaluator -- --gin_file=gin/digits.gin ...
"""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the tasks and waits for them; returns the exit code.

    Args:
      argv: name of the program, the launcher's flags, `--`, the flags of each task; None for
        those of this process.
    """
    raise NotImplementedError
