"""The table of names: what each of tf.estimator's and TensorFlow 1's is here.

`names.toml` holds it. The pages docs/from_tf_*.md and what is said of a program come
from there.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping

import tomllib

from pipeline.process.refusals import RefusedValueError

_FILE = pathlib.Path(__file__).with_name("names.toml")
_FOLDER = "docs"
# Pages by the tables of the file; each has its rows in the file's order.
PAGES = {
    "estimator": "from_tf_estimator.md",
    "models": "from_tf_canned.md",
    "hooks": "from_tf_hooks.md",
    "tpu": "from_tf_tpu.md",
    "layers": "from_tf_layers.md",
    "losses": "from_tf_losses.md",
    "optimizers": "from_tf_optimizers.md",
    "columns": "from_tf_columns.md",
}
HEAD = "| name | here | write | in numbers | runs |\n| --- | --- | --- | --- | --- |"


@dataclasses.dataclass(frozen=True)
class Row:
    """One name of tf.estimator or TensorFlow 1, and what it is here.

    Attributes:
      name: dotted name, without `compat.v1`.
      page: file in docs/ that has the row.
      here: what it is here, in a few words.
      write: line to write, Python.
      runs: path of the test that runs the line, and `::` its function; or of a page.
      numbers: what differs in numbers; "" where nothing does.
      rename: name to write in its place; None where a name alone does not do.
      decide: whether somebody has to decide something, though the name is replaced.
      equal: whether something here is its equal.
    """

    name: str
    page: str
    here: str
    write: str
    runs: str
    numbers: str = ""
    rename: str | None = None
    decide: bool = False
    equal: bool = True

    @property
    def place(self) -> str:
        """The page that has the row, from the top of the repository."""
        return f"{_FOLDER}/{self.page}"

    def line(self) -> str:
        """Returns the row as a line of its page's table."""
        cells = (
            f"`{self.name}`",
            self.here,
            f"`{self.write}`",
            self.numbers or "the same",
            f"[{pathlib.PurePath(self.runs.partition('::')[0]).name}]"
            f"(../{self.runs.partition('::')[0]})",
        )
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


@functools.cache
def rows() -> Mapping[str, Row]:
    """Returns all rows by name, in the order of the file."""
    tables = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {
        name: Row(name=name, page=PAGES[page], **fields)
        for page, found in tables.items()
        for name, fields in found.items()
    }


def of_page(page: str) -> str:
    """Returns the table of a page, in Markdown.

    Args:
      page: file in docs/.
    """
    lines = [row.line() for row in rows().values() if row.page == page]
    return "\n".join([HEAD, *lines])


def write_pages(folder: pathlib.Path) -> None:
    """Writes the tables into their pages, each in the place of the one that is there.

    Args:
      folder: top of the repository.

    Raises:
      RefusedValueError: there are no such pages.
    """
    for page in PAGES.values():
        path = folder / _FOLDER / page
        if not path.is_file():
            raise RefusedValueError(
                f"{path} is no file: write --pages at the top of the repository alone."
            )
        before, _, after = path.read_text(encoding="utf-8").partition(HEAD)
        _, blank, after = after.partition("\n\n")
        text = f"{before}{of_page(page)}{blank or chr(10)}{after}"
        path.write_text(text, encoding="utf-8")
