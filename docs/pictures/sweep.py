"""The trials of a sweep of the digits, a line each."""

import csv
import math
from typing import Any

import matplotlib

from docs.pictures import processes, style

_SEARCH = {
    "LEARNING_RATE": "log(1e-4, 1e-1)",
    "cnn.dropout": "uniform(0, 0.5)",
    "warmup_cosine.warmup_steps": "int(0, 40, 20)",
    "cnn.dense": "choice((16,), (64,), (64, 64))",
}
_METRIC = "accuracy"


def measure() -> dict[str, Any]:
    """Runs a sweep of 16 trials of 60 steps."""
    search = [f"--search={name}={kind}" for name, kind in _SEARCH.items()]
    trial = ("--gin_file=gin/digits.gin", "--gin.TRAIN_STEPS=60", "--gin.EvalSpec.exporters=[]")
    with processes.folder() as path:
        flags = ("--trials=16", f"--metric={_METRIC}", f"--sweep_dir={path}/sweep")
        processes.run("gin_estimator.sweep", *flags, *search, "--", *trial)
        rows = list(csv.DictReader((path / "sweep/trials.csv").open(encoding="utf-8")))
    return {"trials": [{name: row[name] for name in (*_SEARCH, _METRIC)} for row in rows]}


def draw(data: dict[str, Any]) -> None:
    """Draws an axis for each name, and the trials between them; the best one is thick."""
    trials = [trial for trial in data["trials"] if trial[_METRIC]]
    names = [*_SEARCH, _METRIC]
    heights = {name: _heights(name, [trial[name] for trial in trials]) for name in names}
    accuracies = heights[_METRIC][0]
    best = max(range(len(trials)), key=lambda i: accuracies[i])
    colors = matplotlib.colors.LinearSegmentedColormap.from_list(
        "accuracy", [style.GREY, style.BLUE]
    )
    figure, axes = style.figure(380)
    for i in sorted(range(len(trials)), key=lambda i: accuracies[i]):
        line = [heights[name][0][i] for name in names]
        color, width = (style.GREEN, 3.5) if i == best else (colors(accuracies[i]), 1.4)
        axes.plot(range(len(names)), line, color=color, lw=width, alpha=0.9)
    for x, name in enumerate(names):
        axes.axvline(x, color=style.TEXT, lw=1)
        for height, label in heights[name][1]:
            axes.plot([x - 0.02, x + 0.02], [height] * 2, color=style.TEXT, lw=1)
            right = x == len(names) - 1
            axes.text(
                x + (0.04 if right else -0.04), height + 0.01, label, va="bottom", fontsize=10,
                ha="left" if right else "right",
            )  # fmt: skip
    axes.set(xlim=(-0.35, len(names) - 0.65), ylim=(-0.03, 1.07), yticks=[])
    short = [name.replace("warmup_cosine.", "").replace("cnn.", "") for name in names]
    axes.set_xticks(range(len(names)), short)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    style.save(figure, "sweep")


def _heights(name: str, values: list[str]) -> tuple[list[float], list[tuple[float, str]]]:
    """Returns the heights of values on an axis from 0 to 1, and its ticks."""
    kind = _SEARCH.get(name, "").partition("(")[0]
    if kind == "choice":
        choices = sorted({*values}, key=lambda value: (len(value), value))
        places = {each: i / max(1, len(choices) - 1) for i, each in enumerate(choices)}
        return [places[value] for value in values], [(places[c], c) for c in choices]
    scale = math.log10 if kind == "log" else float
    numbers = [scale(float(value)) for value in values]
    if kind == "log":
        low, high = -4.0, -1.0
        ticks = [(10.0**n, style.power(10.0**n)) for n in (-4, -3, -2, -1)]
    else:
        low, high = min(numbers), max(numbers)
        ticks = [(each, f"{each:.3g}") for each in (low, (low + high) / 2, high)]
    span = (high - low) or 1.0
    heights = [(number - low) / span for number in numbers]
    return heights, [((scale(value) - low) / span, label) for value, label in ticks]
