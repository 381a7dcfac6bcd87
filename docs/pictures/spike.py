"""A bad batch, with LossGuard and without it."""

from typing import Any

from docs.pictures import processes, style


def measure() -> dict[str, Any]:
    """Trains with LossGuard and without it."""
    found = processes.run_program("spike")
    for name in ("guarded", "plain"):
        found[name] = [[first, [round(loss, 4) for loss in each]] for first, each in found[name]]
    return found


def draw(data: dict[str, Any]) -> None:
    """Draws the losses; those of the calls that do not count are dotted."""
    [skipped], save = data["skipped"], data["save_steps"]
    counted, dropped = _split(data["guarded"])
    plain, _ = _split(data["plain"])
    figure, axes = style.figure(380)
    begin = save
    axes.plot(*_after(begin, plain), color=style.RED, lw=1.2, alpha=0.8, label="without LossGuard")
    axes.plot(*_after(begin, counted), color=style.BLUE, lw=1.8, label="with LossGuard")
    axes.set(yscale="log", xlabel="global step", ylabel="loss of a step", xlim=(begin, None))
    checkpoint = (skipped - 1) // save * save
    high, low = dropped[skipped], counted[checkpoint]
    axes.plot(skipped, high, "o", color=style.RED, ms=8)
    axes.annotate(
        f"step {skipped}: loss {high:.3g}", (skipped, high), (9, -3),
        textcoords="offset points", color=style.RED,
    )  # fmt: skip
    axes.annotate(
        "", (checkpoint, low), (skipped, high),
        arrowprops={
            "arrowstyle": "->", "color": style.GREEN, "lw": 2,
            "connectionstyle": "arc3,rad=0.35", "shrinkA": 6, "shrinkB": 6,
        },
    )  # fmt: skip
    axes.plot(checkpoint, low, "^", color=style.GREEN, ms=9)
    axes.annotate(
        f"returns to the checkpoint\nof step {checkpoint}, continues\nwithout that batch",
        (0.03, 0.95), xycoords="axes fraction", va="top", color=style.GREEN,
    )  # fmt: skip
    figure.legend(loc="outside upper right", ncols=2)
    style.save(figure, "spike")


def _split(calls: list[Any]) -> tuple[dict[int, float], dict[int, float]]:
    """Returns the losses by step that count, and those that a later call made again."""
    counted: dict[int, float] = {}
    dropped: dict[int, float] = {}
    for first, losses in calls:
        again = {step: loss for step, loss in counted.items() if step >= first}
        dropped |= again
        counted |= dict(enumerate(losses, first))
    return counted, dropped


def _after(begin: int, losses: dict[int, float]) -> tuple[list[int], list[float]]:
    steps = [step for step in losses if step >= begin]
    return steps, [losses[step] for step in steps]
