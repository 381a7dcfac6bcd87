"""A worker of two gets SIGKILL; the launcher starts both again."""

import os
import pathlib
import signal
import time
from typing import Any

import psutil

from docs.pictures import processes, style

_KILL_STEP = 50


def measure() -> dict[str, Any]:
    """Trains twice on two workers, and kills the second worker in one of the trainings."""
    with processes.folder() as path:
        killed = _train(path, kill=True)
    with processes.folder() as path:
        whole = _train(path, kill=False)
    pairs = zip(killed.pop("weights"), whole["weights"], strict=True)
    return {**killed, "largest_difference": max(abs(a - b) for a, b in pairs)}


def _train(path: pathlib.Path, *, kill: bool) -> dict[str, Any]:
    began, ends, killed_at = time.time(), {}, None
    with open(path / "log.txt", "w", encoding="utf-8") as log:
        command = processes.launch("kill", path, "--workers=2", "--max_restarts=1")
        process = processes.start(*command, output=log)
        while process.poll() is None:
            time.sleep(0.05)
            for index in range(2):
                for note in processes.lines(path / f"{index}.jsonl"):
                    if note["pid"] not in ends and not psutil.pid_exists(note["pid"]):
                        ends[note["pid"]] = time.time()
                    if kill and index == 1 and note.get("step") == _KILL_STEP and not killed_at:
                        killed_at = time.time()
                        os.kill(note["pid"], signal.SIGKILL)
    if process.returncode:
        raise RuntimeError((path / "log.txt").read_text(encoding="utf-8")[-3000:])
    tasks = [processes.lines(path / f"{index}.jsonl") for index in range(2)]
    chief = tasks[0]
    return {
        "killed_at": killed_at and round(killed_at - began, 2),
        "tasks": [_starts(notes, ends, began) for notes in tasks],
        "losses": [
            [round(note["at"] - began, 2), note["step"], round(note["loss"], 4)]
            for note in chief
            if "step" in note
        ],
        "saves": [[round(n["at"] - began, 2), n["saved"]] for n in chief if "saved" in n],
        "weights": processes.result(path),
    }


def _starts(
    notes: list[dict[str, Any]], ends: dict[int, float], began: float
) -> list[dict[str, Any]]:
    """Returns the times of each process of a task: its start, its first and last step, its end."""
    found = []
    for pid in dict.fromkeys(note["pid"] for note in notes):
        own = [note for note in notes if note["pid"] == pid]
        steps = [note["at"] for note in own if "step" in note]
        times = [own[0]["began"], steps[0], steps[-1], ends.get(pid, own[-1]["at"])]
        names = ("began", "first_step", "last_step", "ended")
        found.append(dict(zip(names, (round(each - began, 2) for each in times), strict=True)))
    return found


def draw(data: dict[str, Any]) -> None:
    """Draws the two workers, and the loss below."""
    figure, (lanes, losses) = style.figure(
        400, nrows=2, sharex=True, gridspec_kw={"height_ratios": [1, 1.5]}
    )
    _draw_lanes(lanes, data)
    _draw_losses(losses, data)
    difference = data["largest_difference"]
    lanes.set_title(
        "Two workers, one killed: the weights at the end are those of a run without the kill,\n"
        f"largest difference {style.power(difference) if difference else 0}"
    )
    style.save(figure, "kill")


def _draw_lanes(axes: Any, data: dict[str, Any]) -> None:
    labels = {
        "starts": style.GREY,
        "trains": style.BLUE,
        "notices the loss, ends": style.ORANGE,
    }
    for row, starts in enumerate(data["tasks"]):
        for start in starts:
            times = [start[n] for n in ("began", "first_step", "last_step", "ended")]
            for (label, color), left, right in zip(labels.items(), times, times[1:], strict=False):
                if label in ("starts", "trains") or (row == 0 and start is starts[0]):
                    axes.barh(row, right - left, 0.6, left, color=color, label=label)
    axes.plot(data["killed_at"], 1, "x", color=style.RED, ms=13, mew=3)
    axes.annotate("SIGKILL", (data["killed_at"], 1.35), ha="center", va="top", color=style.RED)
    axes.set(yticks=[0, 1], yticklabels=["worker 0", "worker 1"], ylim=(2, -0.6))
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(bottom=False)
    handles, names = axes.get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    axes.figure.legend(
        unique.values(), unique.keys(), loc="outside lower right", ncols=3, columnspacing=1
    )


def _draw_losses(axes: Any, data: dict[str, Any]) -> None:
    end = data["tasks"][0][0]["ended"]
    parts = [[p for p in data["losses"] if (p[0] < end) == first] for first in (True, False)]
    for part in parts:
        axes.plot([p[0] for p in part], [p[2] for p in part], color=style.BLUE, lw=2)
    low = -0.3  # Below the losses.
    for at, step in data["saves"]:
        if step > 1:
            axes.plot(at, low, "^", color=style.GREEN, ms=8)
            axes.annotate(
                f"{step}", (at, low), (0, 9), textcoords="offset points", ha="center",
                color=style.GREEN,
            )  # fmt: skip
    last, again = parts[0][-1], parts[1][0]
    axes.plot([last[0], again[0]], [last[2], again[2]], ":", color=style.ORANGE, lw=1.5)
    for point, text, align in (
        (last, f"step {last[1]}", "left"),
        (again, f"continues with step {again[1]}", "left"),
    ):
        axes.annotate(text, (point[0], point[2]), (6, 8), textcoords="offset points", ha=align)
    axes.set(xlabel="seconds", ylabel="loss", xlim=(0, None), yticks=[0, 0.2, 0.4, 0.6, 0.8])
    axes.margins(y=0.15)
    axes.plot([], [], "^", color=style.GREEN, label="checkpoint of a step")
    axes.legend(loc="upper center", handletextpad=0.2)
