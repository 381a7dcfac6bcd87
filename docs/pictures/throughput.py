"""Steps per second over those of other loops, with the range of the rounds."""

import re
from typing import Any

from docs.pictures import processes, style

_LINE = re.compile(
    r"^ *([\d.]+) \(([\d.]+) to ([\d.]+)\)  (.*?)(?: \(bar [\d.]+\))?; ours ([\d,]+) steps/s", re.M
)


def measure() -> dict[str, Any]:
    """Runs the benchmarks of the overhead, and of several processes."""
    outputs = [processes.run(f"benchmarks.{name}") for name in ("overhead", "scaling")]
    return {"ratios": read("\n".join(outputs))}


def read(output: str) -> list[dict[str, Any]]:
    """Returns the ratios that benchmarks printed."""
    return [
        {
            "name": name,
            "median": float(median),
            "range": [float(least), float(most)],
            "steps_per_sec": int(rate.replace(",", "")),
        }
        for median, least, most, name, rate in _LINE.findall(output)
    ]


def draw(data: dict[str, Any]) -> None:
    """Draws a bar for each comparison, and its range."""
    ratios = data["ratios"]
    figure, axes = style.figure(70 + 42 * len(ratios))
    for y, each in enumerate(ratios):
        axes.plot(each["range"], [y, y], color=style.BLUE, lw=7, alpha=0.4)
        axes.plot(each["median"], y, "o", color=style.BLUE, ms=9)
        axes.text(each["range"][1] * 1.1, y, f"{each['median']:.2f}", va="center")
    axes.axvline(1, color=style.ORANGE, lw=1.5)
    axes.set(
        xscale="log",
        ylim=(len(ratios) - 0.4, -0.6),
        xticks=[0.5, 1, 2, 5, 10],
        yticks=range(len(ratios)),
        yticklabels=[each["name"].replace(" over ", "\nover ") for each in ratios],
        xlabel="steps per second over those of the other loop: median, range",
    )
    axes.xaxis.set_major_formatter(style.power)
    axes.minorticks_off()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    style.save(figure, "throughput")
