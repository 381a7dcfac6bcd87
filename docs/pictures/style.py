"""The look of the pictures: 720 pixels wide, and colors for light and dark pages."""

import pathlib
from typing import Any

import matplotlib
from matplotlib.figure import Figure

IMG = pathlib.Path(__file__).parents[1] / "img"
TEXT, BLUE, GREEN, RED = "#7a7a7a", "#3b86c8", "#3f9b55", "#d9534f"
ORANGE, GREY = "#d18a2c", "#909090"

matplotlib.rcParams.update(
    {
        "svg.fonttype": "none",  # Texts stay texts: small files that can be searched.
        "svg.hashsalt": "gin-estimator",  # The same names of parts each time.
        "savefig.transparent": True,
        "font.size": 11,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 11,
        "grid.color": GREY,
        "grid.alpha": 0.25,
        **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor"], TEXT),
        **dict.fromkeys(["xtick.color", "ytick.color", "axes.titlecolor"], TEXT),
    }
)


def figure(height: int, **subplots: Any) -> tuple[Figure, Any]:
    """Returns a figure and its axes.

    Args:
      height: pixels.
      **subplots: arguments of `Figure.subplots`.
    """
    made = Figure(figsize=(720 / 96, height / 96), layout="constrained")
    return made, made.subplots(**subplots)


def save(made: Figure, name: str) -> None:
    """Writes `docs/img/NAME.svg`, the same bytes for the same data."""
    IMG.mkdir(exist_ok=True)
    made.savefig(IMG / f"{name}.svg", metadata={"Date": None, "Creator": None})


def power(value: float, _: Any = None) -> str:
    """Returns 1e-5 for 0.00001; for ticks of logarithmic axes."""
    return (
        f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+") if value < 0.01 else f"{value:g}"
    )
