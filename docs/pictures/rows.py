"""Which replica gets which rows of batches of 8, 8 and 5."""

from typing import Any

from docs.pictures import processes, style

_COLORS = (style.BLUE, style.GREEN, style.ORANGE, style.RED)


def measure() -> dict[str, Any]:
    """Trains on four replicas; the loss of a row is its number, so that the mean shows the rows."""
    return {"steps": processes.run_program("rows")}


def draw(data: dict[str, Any]) -> None:
    """Draws a line of boxes for each batch."""
    steps = data["steps"]
    figure, axes = style.figure(60 + 66 * len(steps))
    for y, step in enumerate(steps):
        for x, (row, replica) in enumerate(zip(step["rows"], step["replicas"], strict=True)):
            axes.barh(y, 0.92, 0.6, x, color=_COLORS[replica], alpha=0.85)
            axes.text(x + 0.46, y, row, ha="center", va="center", color="white", weight="bold")
        number = len(step["rows"])
        axes.text(9.9, y, f"sum / {number} = {step['loss']:g}", va="center", ha="right")
        empty = [str(i) for i in range(4) if i not in step["replicas"]]
        if empty:
            axes.text(
                number + 0.1, y, f"none for replica {', '.join(empty)}", va="center",
                color=_COLORS[int(empty[0])],
            )  # fmt: skip
    for replica, color in enumerate(_COLORS):
        axes.bar(0, 0, color=color, alpha=0.85, label=f"replica {replica}")
    axes.set(
        ylim=(len(steps) - 0.5, -0.5),
        xlim=(-0.1, 10),
        xticks=[],
        yticks=range(len(steps)),
        yticklabels=[f"batch of {len(step['rows'])}" for step in steps],
    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside upper right", ncols=4, handlelength=1, columnspacing=1.2)
    style.save(figure, "rows")
