"""Paths as one text each: comparing texts is comparing places.

`runs/a/`, `./runs/a`, `runs//a` and, from another directory, `../runs/a` are one place.
Each path that a user gives becomes `normal` where it comes in; all others are joined
from these.
"""

import os

_LOCAL = "file"


def normal(path: str | os.PathLike[str]) -> str:
    """The path from the root on, without doubled, trailing or `.` parts.

    It stays what it is when the program changes its directory.

    Args:
      path: local, or of a file system with a scheme such as `gs://bucket/runs/a/`, of
        which only slashes at the end go: the others are part of an object's name.
    """
    path = os.fspath(path)
    scheme, found, rest = path.partition("://")
    if found and scheme != _LOCAL:
        return f"{scheme}://{rest.rstrip('/')}"
    path = os.path.expanduser(rest if found else path)
    path = os.path.join(os.getcwd(), path)
    # Behind a link, `..` is not what the text says.
    resolved = os.path.realpath if ".." in path.split(os.sep) else os.path.normpath
    return resolved(path)


def is_text(path: object) -> bool:
    """Whether a path is UTF-8, which TensorFlow takes. Anything but a str counts so.

    Python holds bytes that are none as surrogates, such as those of the command line.
    """
    if not isinstance(path, str):
        return True
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def same(first: str, second: str) -> bool:
    """Whether two paths lead to the same place, links included."""
    first, second = normal(first), normal(second)
    if first == second:
        return True
    if "://" in first or "://" in second:
        return False
    return os.path.realpath(first) == os.path.realpath(second)


def shown(path: str) -> str:
    """A path as a reader types it: below the working directory from there on."""
    if "://" in path:
        return path
    near = os.path.relpath(path)
    return path if near.startswith(os.pardir) else near
