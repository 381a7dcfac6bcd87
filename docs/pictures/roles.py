"""What each task of two clusters does, as the tasks themselves print it."""

import re
from typing import Any

from matplotlib.patches import FancyBboxPatch

from docs.pictures import processes, style

_CLUSTERS = {
    "lockstep": ("--workers=2", "--evaluator"),
    "servers": ("--workers=2", "--ps=1", "--evaluator"),
}
_VERBS = {
    "reads train": "reads data",
    "computes train": "computes steps",
    "variables": "holds variables",
    "saves": "saves",
    "computes eval": "evaluates",
}
# Positions of the tasks, and arrows between them: from, to, text.
_PLACES = {
    "lockstep": {"worker 0": 0.5, "worker 1": 2.5, "evaluator 0": 4.2},
    "servers": {"chief 0": 0, "worker 0": 1.35, "worker 1": 2.35, "ps 0": 3.85, "evaluator 0": 4.9},
}
_ARROWS = {
    "lockstep": [("worker 0", "worker 1", "<->", "gradients")],
    "servers": [
        ("chief 0", "worker 0", "->", "steps"),
        ("worker 1", "ps 0", "<->", "values,\ngradients"),
    ],
}
_WIDTH, _HEIGHT = 0.9, 1.0


def measure() -> dict[str, Any]:
    """Runs both clusters."""
    return {name: _tasks(flags) for name, flags in _CLUSTERS.items()}


def _tasks(flags: tuple[str, ...]) -> dict[str, list[str]]:
    with processes.folder() as path:
        output = processes.run(*processes.launch("roles", path, *flags))
    did = {(task, what) for task, what in re.findall(r"^\[(\w+ \d)\] DID (.*)", output, re.M)}
    for _, what in list(did):
        if what.startswith("variable"):
            job, number = re.search(r"job:(\w+)/replica:0/task:(\d)", what).groups()
            did.add((f"{job} {number}", "variables"))
    tasks = re.findall(r"^\[(\w+ \d)\] ", output, re.M)
    return {
        task: [text for what, text in _VERBS.items() if (task, what) in did]
        for task in sorted({*tasks, *(task for task, _ in did)})
    }


def draw(data: dict[str, Any]) -> None:
    """Draws a line of boxes for each cluster, and model_dir below it."""
    figure, both = style.figure(560, nrows=2)
    for axes, (name, places) in zip(both, _PLACES.items(), strict=True):
        axes.set(xlim=(-0.05, 5.85), ylim=(-1.05, 1.45), title=" ".join(_CLUSTERS[name]))
        axes.axis("off")
        for task, x in places.items():
            _box(axes, x, task.removesuffix(" 0") if task[0] in "cpe" else task, data[name][task])
        for left, right, kind, text in _ARROWS[name]:
            x0, x1 = places[left] + _WIDTH, places[right]
            _arrow(axes, (x0, 0.5), (x1, 0.5), kind)
            axes.text((x0 + x1) / 2, 0.58, text, ha="center", va="bottom", fontsize=10)
        _draw_folder(axes, data[name], places)
    style.save(figure, "roles")


def _box(axes: Any, x: float, name: str, verbs: list[str]) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x + 0.04, 0.04), _WIDTH - 0.08, _HEIGHT - 0.08, "round,pad=0.04",
            fc=style.BLUE + "22", ec=style.BLUE,
        )
    )  # fmt: skip
    middle = x + _WIDTH / 2
    axes.text(middle, 0.97, name, ha="center", va="top", color=style.BLUE, weight="bold")
    axes.text(middle, 0.72, "\n".join(verbs), ha="center", va="top", fontsize=9)


def _draw_folder(axes: Any, tasks: dict[str, list[str]], places: dict[str, float]) -> None:
    axes.add_patch(
        FancyBboxPatch((0.04, -0.95), 5.7, 0.25, "round,pad=0.04", fc="none", ec=style.GREEN)
    )
    axes.text(2.9, -0.83, "model_dir", ha="center", va="center", color=style.GREEN)
    for task, verbs in tasks.items():
        x = places[task] + _WIDTH / 2
        if "saves" in verbs:
            _arrow(axes, (x, 0), (x, -0.66), "->")
            axes.text(x + 0.06, -0.33, "checkpoints", va="center", fontsize=10)
        elif "evaluates" in verbs:
            _arrow(axes, (x, 0), (x, -0.66), "<->")
            axes.text(
                x - 0.06, -0.33, "checkpoints,\nmetrics", va="center", ha="right", fontsize=10
            )


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
    options = {"arrowstyle": kind, "color": style.TEXT, "shrinkA": 1, "shrinkB": 1, "lw": 1.3}
    axes.annotate("", end, start, arrowprops=options)
