"""The curve of --job=find_learning_rate for the digits."""

import csv
import re
from typing import Any

from docs.pictures import processes, style

_FLAGS = ("--gin_file=gin/digits.gin", "--job=find_learning_rate")


def measure() -> dict[str, Any]:
    """Runs the job."""
    with processes.folder() as path:
        highest = "--gin.find_learning_rate.highest=1.0"
        output = processes.run("gin_estimator.main", *_FLAGS, highest, f"--model_dir={path}/run")
        file = path / "run/find_learning_rate/rates.csv"
        rows = list(csv.DictReader(file.open(encoding="utf-8")))
    curve = [[float(row["learning_rate"]), round(float(row["loss"]), 4)] for row in rows]
    suggestion = re.search(r"suggestion ([\d.e-]+)", output)
    return {"curve": curve, "suggestion": float(suggestion[1])}


def draw(data: dict[str, Any]) -> None:
    """Draws the loss by the learning rate, and the suggestion."""
    rates, losses = zip(*data["curve"], strict=True)
    best = data["suggestion"]
    figure, axes = style.figure(320)
    axes.plot(rates, losses, color=style.BLUE, lw=2)
    axes.axvline(best, color=style.GREEN, lw=2)
    top = sorted(losses)[int(len(losses) * 0.9)]
    axes.text(best * 0.85, 0.08 * top, f"suggestion {best:g}", ha="right", color=style.GREEN)
    axes.set(
        xscale="log",
        ylim=(0, min(max(losses), 2 * top) * 1.05),
        xlabel="learning rate of the step",
        ylabel="loss of the step",
    )
    axes.xaxis.set_major_formatter(style.power)
    axes.minorticks_off()
    style.save(figure, "lr_finder")
