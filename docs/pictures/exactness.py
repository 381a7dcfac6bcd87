"""The largest difference of a weight from `fit` on one replica, for each program and way."""

import re
from typing import Any

from docs.pictures import processes, style

_BEST, _WORST = 1e-8, 1e-1
_FAILED = 1.0  # Where errors are drawn.
_WAYS = {
    "fit, Mirrored x2": ("model.fit, 2 replicas", style.RED, "x", 0.0),
    "fit, 2 workers": ("model.fit, 2 workers", style.ORANGE, "+", 0.0),
    "ge.fit, Mirrored x2": ("ge.fit, 2 replicas", style.BLUE, "o", -0.17),
    "ge.fit, 2 workers": ("ge.fit, 2 workers", style.GREEN, "s", 0.17),
}


def measure() -> dict[str, Any]:
    """Runs the benchmark of `ge.fit`, without its speed."""
    return read(processes.run("benchmarks.keras_fit", "--strategies=one,mirrored,workers"))


def read(table: str) -> dict[str, Any]:
    """Returns the differences of the weights in the table of the benchmark.

    An error instead of a difference stays a text.
    """
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    head, cases = rows[0], rows[2:]
    return {
        "cases": {
            name: {
                way: _first(cell)
                for way, cell in zip(head[1:], cells, strict=False)
                if not way.startswith("speed")
            }
            for name, *cells in cases
        }
    }


def draw(data: dict[str, Any]) -> None:
    """Draws a row for each program."""
    cases = data["cases"]
    figure, axes = style.figure(500)
    axes.axvspan(_BEST / 3, 1e-5, color=style.GREEN, alpha=0.1, lw=0)
    axes.axvline(_FAILED / 3, color=style.GREY, lw=0.8)
    for way, (label, color, marker, shift) in _WAYS.items():
        values = [cells.get(way) for cells in cases.values()]
        points = [(_place(value), y + shift) for y, value in enumerate(values) if value is not None]
        axes.scatter(
            *zip(*points, strict=True),
            s=42,
            c=color,
            marker=marker,
            label=label,
            zorder=2 + (marker in "x+"),
        )
    axes.set(
        xscale="log",
        xlim=(_BEST / 3, _FAILED * 3),
        ylim=(len(cases) - 0.4, -0.6),
        xticks=[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, _FAILED],
        xlabel="largest difference of a weight from one device",
        yticks=range(len(cases)),
        yticklabels=list(cases),
    )
    axes.xaxis.set_major_formatter(lambda x, _: "error" if x == _FAILED else style.power(x))
    axes.minorticks_off()
    axes.grid(axis="x")
    figure.legend(loc="outside upper right", ncols=2, handletextpad=0.2, columnspacing=1)
    style.save(figure, "exactness")


def _first(cell: str) -> float | str:
    number = re.match(r"[\d.]+(e[+-]\d+)?(?= /|,|$)", cell)
    return float(number[0]) if number else cell


def _place(value: float | str) -> float:
    return _FAILED if isinstance(value, str) else min(max(value, _BEST), _WORST)
