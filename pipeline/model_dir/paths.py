"""One text for each place: two paths are the same place where their texts are equal.

`runs/a/`, `./runs/a`, `runs//a` and, from another directory, `../runs/a` are one place.
Each path that a user gives becomes `normal` where it comes in. All other paths are
joined from these.
"""

import fnmatch
import os
from typing import Any

from pipeline.process.refusals import RefusedValueError

_LOCAL = "file"
# File systems take 255 bytes; the rest is for what is put before and after.
_MOST_BYTES = 200


def normal(path: str | os.PathLike[str]) -> str:
    """Returns the path from the root on, without doubled, trailing or `.` parts.

    The result means the same place after the program changes its directory.

    Args:
      path: local, or of a file system with a scheme such as `gs://bucket/runs/a/`. Of
        a path with a scheme only slashes at the end go: all others are part of an
        object's name.
    """
    path = os.fspath(path)
    scheme, found, rest = path.partition("://")
    if found and scheme != _LOCAL:
        return f"{scheme}://{rest.rstrip('/')}"
    path = os.path.expanduser(rest if found else path)
    if not os.path.isabs(path):
        # Only then: the working directory may be gone.
        path = os.path.join(os.getcwd(), path)
    # `link/..` is the parent of the link's target, which the text alone does not tell.
    resolved = os.path.realpath if ".." in path.split(os.sep) else os.path.normpath
    return resolved(path)


def is_text(path: object) -> bool:
    """Whether a path is UTF-8, as TensorFlow wants it; True of all that is no str.

    Python takes bytes of the command line that are no UTF-8 as surrogates, which
    cannot be encoded.
    """
    if not isinstance(path, str):
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_pattern(path: str) -> bool:
    """Whether TensorFlow, which reads checkpoints by pattern, misses a path.

    It takes `[a]` for one character and a backslash for nothing, while it writes to the
    path as it stands.
    """
    return "\\" in path or not all(
        fnmatch.fnmatchcase(part, part) for part in path.split("/")
    )


def same(first: str, second: str) -> bool:
    """Whether two paths lead to the same place, links included."""
    first, second = normal(first), normal(second)
    if first == second:
        return True
    if "://" in first or "://" in second:
        return False
    return os.path.realpath(first) == os.path.realpath(second)


def shown(path: str) -> str:
    """Returns a path as one types it: relative where that goes down only."""
    if "://" in path:
        return path
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near


def check_folders(field: str, name: str) -> None:
    """Checks a name that becomes one or several folders below model_dir.

    Args:
      field: argument that gave the name, for the message.
      name: the name, whose parts are divided by slashes.

    Raises:
      ValueError: no file system has such a folder.
    """
    if "\0" in name or not is_text(name):
        raise RefusedValueError(
            f"{field} is {name[:50]!r}, which is no folder's name in UTF-8: write a "
            "name such as 'test'."
        )
    longest = max(len(part.encode()) for part in name.split("/"))
    if longest > _MOST_BYTES:
        raise RefusedValueError(
            f"{field} is {name[:50]!r}..., of {longest} bytes, and names a folder: "
            f"write a name of at most {_MOST_BYTES} bytes, such as 'test'."
        )


def checked_model_dir(value: Any) -> str | None:
    """Returns the field `RunConfig.model_dir` as a text, or None.

    Raises:
      ValueError: it is no path, or not in UTF-8.
    """
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(path, str) and "\0" in path or not is_text(path):
        raise RefusedValueError(
            f"RunConfig.model_dir is {path!r}, which is no path in UTF-8: write "
            "model_dir='runs/1'."
        )
    if not isinstance(path, str) or not path:
        raise RefusedValueError(
            f"RunConfig.model_dir is {value!r}, not a path: write model_dir='runs/1', "
            "or leave it out for a temporary one."
        )
    return path
