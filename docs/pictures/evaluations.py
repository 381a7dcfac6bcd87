"""A training that EarlyStopping ends and returns to its best checkpoint."""

from typing import Any

from docs.pictures import processes, style


def measure() -> dict[str, Any]:
    """Trains on few examples with wrong labels among them."""
    return processes.run_program("evaluations")


def draw(data: dict[str, Any]) -> None:
    """Draws the loss of the evaluations, the patience, and the return."""
    points, patience = data["evaluations"], data["patience_steps"]
    points = points[: points.index(max(points)) + 1]  # Without that of the restored step.
    (best, lowest), (last, highest) = min(points, key=lambda p: p[1]), points[-1]
    figure, axes = style.figure(340)
    axes.axvspan(best, best + patience, color=style.ORANGE, alpha=0.13, lw=0)
    axes.plot(*zip(*points, strict=True), "o-", color=style.BLUE, lw=2, ms=5)
    top = max(loss for _, loss in points)
    axes.text(
        best + patience / 2, top, f"patience_steps={patience}", ha="center", va="bottom",
        color=style.ORANGE,
    )  # fmt: skip
    arrow = {"arrowstyle": "->", "color": style.GREEN, "lw": 2, "connectionstyle": "arc3,rad=-0.25"}
    axes.annotate("", (best, lowest), (last, highest), arrowprops={**arrow, "shrinkB": 7})
    axes.plot(best, lowest, "o", color=style.GREEN, ms=12, mfc="none", mew=2.5)
    axes.annotate(
        f"best: {lowest:.3f} at step {best}", (best, lowest), (-6, -20),
        textcoords="offset points", color=style.GREEN, ha="right",
    )  # fmt: skip
    step, loss = data["final"]
    axes.text(
        0.98, 0.32, f"restore_best: ends with step {step}, loss {loss:.3f}",
        transform=axes.transAxes, color=style.GREEN, ha="right",
    )  # fmt: skip
    axes.set(xlabel="global step", ylabel="loss of the evaluation", xlim=(0, last * 1.06))
    axes.margins(y=0.18)
    style.save(figure, "evaluations")
