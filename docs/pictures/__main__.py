"""Draws the pictures of the documentation from docs/pictures/data: python -m docs.pictures.

Drawing needs docs/pictures/requirements.txt. `python -m docs.pictures kill rows --measure` runs
two of them again before.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import pathlib

NAMES = (
    "exactness",
    "kill",
    "rows",
    "roles",
    "lockstep",
    "evaluations",
    "spike",
    "lr_finder",
    "sweep",
    "tensorboard",
    "throughput",
)
_DATA = pathlib.Path(__file__).parent / "data"


def main() -> None:
    """Draws the pictures of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"Default: {', '.join(NAMES)}.")
    parser.add_argument("--measure", action="store_true", help="Run the project first.")
    options = parser.parse_args()
    if unknown := {*options.names} - {*NAMES}:
        parser.error(f"NAME is {', '.join(unknown)}: expected one of {', '.join(NAMES)}.")
    for name in options.names or NAMES:
        picture = importlib.import_module(f"docs.pictures.{name}")
        file = _DATA / f"{name}.json"
        if options.measure:
            data = {"measured_on": _machine(), **picture.measure()}
            file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        picture.draw(json.loads(file.read_text(encoding="utf-8")))
        print(name, flush=True)


def _machine() -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras")]
    return ", ".join([f"{os.cpu_count()} CPU cores", *versions])


if __name__ == "__main__":
    main()
