"""The batches of a fast and a slow worker, in lockstep and with parameter servers."""

import re
from typing import Any

from docs.pictures import processes, style

_WINDOW_SECS = 2.0
_CLUSTERS = {"lockstep": ("--workers=2",), "servers": ("--workers=2", "--ps=1")}
_TITLES = {
    "lockstep": "in lockstep (multi_worker)",
    "servers": "parameter servers",
}


def measure() -> dict[str, Any]:
    """Runs both clusters; the second worker reads a batch in 0.1 s, the first one in 0.02 s."""
    return {name: _times(flags) for name, flags in _CLUSTERS.items()}


def _times(flags: tuple[str, ...]) -> dict[str, list[float]]:
    """Returns the times at which each worker had a batch, in the middle of the training."""
    with processes.folder() as path:
        output = processes.run(*processes.launch("lockstep", path, *flags))
    found = re.findall(r"^\[worker \d\] BATCH (\d) \"?([\d.]+)", output, re.M)
    times = {f"worker {i}": sorted(float(t) for w, t in found if int(w) == i) for i in range(2)}
    middle = times["worker 1"][len(times["worker 1"]) // 2]
    return {
        worker: [round(t - middle, 4) for t in all_times if 0 <= t - middle < _WINDOW_SECS]
        for worker, all_times in times.items()
    }


def draw(data: dict[str, Any]) -> None:
    """Draws a line for each batch of each worker."""
    figure, both = style.figure(300, nrows=2, sharex=True)
    for axes, (name, title) in zip(both, _TITLES.items(), strict=True):
        workers = data[name]
        for y, (times, color) in enumerate(
            zip(workers.values(), (style.BLUE, style.ORANGE), strict=True)
        ):
            axes.eventplot(times, lineoffsets=y, linelengths=0.6, linewidths=2.5, colors=color)
            axes.text(_WINDOW_SECS + 0.03, y, f"{len(times)} batches", va="center", color=color)
        axes.set(
            title=title,
            ylim=(1.5, -0.5),
            xlim=(0, _WINDOW_SECS),
            yticks=[0, 1],
            yticklabels=["worker 0", "slow worker 1"],
        )
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    both[-1].set_xlabel("seconds")
    style.save(figure, "lockstep")
