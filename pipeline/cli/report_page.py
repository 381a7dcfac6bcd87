# SPDX-License-Identifier: Apache-2.0
"""The report of a run, as lines of text and as one HTML file without scripts and other files."""

import dataclasses
import html
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..contract import hparams
from ..model_dir import phases
from ..model_dir.evaluation_results import Evaluated
from ..run.durations import clock
from .job_output import aligned, number

Points = Sequence[tuple[float, float]]

_NAMES = {
    phases.STEPS: "steps that counted",
    phases.INPUT: "waiting for input",
    phases.HOOKS: "hooks, other processes",
    phases.SAVE: "saves",
    phases.EVALUATION: "evaluations",
    phases.EXPORT: "exports",
    phases.START: "start, restore",
    phases.TRACING: "tracing, first step",
    phases.REDONE: "steps redone",
    phases.DOWN: "down",
}
_COLORS = dict(
    zip(
        phases.PARTS,
        ("#2e7d32", "#f9a825", "#8d6e63", "#1565c0", "#6a1b9a", "#00838f", "#90a4ae", "#546e7a")
        + ("#ef6c00", "#c62828"),
        strict=True,
    )
)
_LINE_COLORS = ("#1565c0", "#c62828", "#2e7d32", "#6a1b9a", "#ef6c00")
_MOST_CHARTS, _MOST_POINTS, _NUM_COLUMNS = 24, 500, 240
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em }
h1 { overflow-wrap: anywhere } table { border-collapse: collapse; margin: 1em 0 }
table, pre { display: block; overflow-x: auto } td, th { padding: 2px 12px 2px 0 }
td:not(:last-child) { white-space: nowrap }
td:last-child { overflow-wrap: anywhere } td:nth-child(n + 4):last-child { min-width: 10em }
th { text-align: left } .n { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto; overflow: visible } rect { shape-rendering: crispEdges }
pre { background: #f5f5f5; padding: 1em }
i { display: inline-block; width: .9em; height: .9em; margin-right: .5em }
figure { display: inline-block; margin: 0 1em 1em 0 } figcaption span { margin-left: 1em }
.big { font-size: 1.6em; margin-right: 1em; white-space: nowrap; display: inline-block }
"""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a report shows.

    Attributes:
      model_dir: directory of the run.
      times: what the run spent its time on; it has at least one attempt.
      is_running: whether the last attempt runs.
      evaluations: evaluations by folder.
      exports: directories of exports by exporter, oldest first.
      config: the gin file of the last attempt; None for none.
    """

    model_dir: str
    times: phases.Times
    is_running: bool = False
    evaluations: Mapping[str, Sequence[Evaluated]] = dataclasses.field(default_factory=dict)
    exports: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    config: str | None = None

    def end_of(self, attempt: phases.Attempt) -> str:
        """Returns how an attempt ended."""
        if attempt.reason is not None:
            return "; ".join([attempt.reason, *attempt.details])
        is_last = attempt is self.times.attempts[-1]
        return "running" if is_last and self.is_running else "killed"

    @property
    def title(self) -> str:
        """What the run has reached, and how it ended."""
        last = self.times.attempts[-1]
        most = "" if last.max_step is None else f" of {last.max_step}"
        return f"step {last.step}{most} | {self.end_of(last)}"

    def changes(self) -> Iterator[str]:
        """Yields what changed between attempts."""
        known = [each for each in self.times.attempts if each.options is not None]
        for before, after in zip(known, known[1:], strict=False):
            for change in hparams.changes(before.options, after.options):
                yield f"attempt {after.number}: {change}"


def text_lines(report: Report) -> Iterator[str]:
    """Yields the report as text."""
    times = report.times
    yield f"{report.model_dir} | {report.title}"
    yield f"wall time {clock(times.wall_secs)} | goodput {times.goodput:.1%}"
    for title, rows in _tables(report):
        if len(rows) > 1:
            yield ""
            yield title
            yield from aligned(rows)


def page(report: Report) -> str:
    """Returns the report as an HTML file."""
    times, escape = report.times, html.escape
    last = times.attempts[-1]
    parts = [
        f"<h1>{escape(report.model_dir)}</h1>",
        f"<p>{escape(report.title)} | {_date(last.end)}</p><p>",
        f"<span class=big>goodput {times.goodput:.1%}</span>",
        f"<span class=big>wall time {clock(times.wall_secs)}</span>",
        f"<span class=big>attempts {len(times.attempts)}</span></p>",
        *_charts(report),
        _timeline(times),  # The next table is its legend.
    ]
    for title, rows in _tables(report):
        if len(rows) > 1:
            parts += [f"<h2>{title.capitalize()}</h2>", _table(rows)]
    options = "\n".join(f"{name} {value}" for name, value in (last.options or {}).items())
    text = options if report.config is None else report.config
    parts += ["<h2>Configuration</h2>", f"<pre>{escape(text)}</pre>"]
    return _document(report.model_dir, parts)


def sweep_page(folder: str, rows: Sequence[Sequence[str]]) -> str:
    """Returns the report of a sweep: its trials, and the metric over each hyperparameter.

    Args:
      folder: folder of the sweep.
      rows: rows of its `trials.csv`; the first one has the names of the columns.
    """
    names, *trials = rows
    parts = [f"<h1>{html.escape(folder)}</h1>"]
    for column in (0, *range(3, len(names) - 1)):
        pairs = [(row[column], row[2]) for row in trials]
        points = sorted((float(x), float(y)) for x, y in pairs if _is_number(x) and _is_number(y))
        name = names[column]
        if points and 0 < 100 * points[0][0] < points[-1][0]:
            name, points = f"log10 of {name}", [(math.log10(x), y) for x, y in points]
        parts.append(_chart(f"{names[2]} over {name}", {"": points}, is_line=False))
    return _document(folder, [*parts, _table(rounded(rows))])


def rounded(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Returns the rows of a sweep with fewer digits; its `trials.csv` has the exact numbers."""
    return [[f"{float(t):.4g}" if "." in t and _is_number(t) else t for t in r] for r in rows]


def _document(title: str, parts: Iterable[str]) -> str:
    head = "<meta charset=utf-8><meta name=viewport content='width=device-width'>"
    head += f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _tables(report: Report) -> Iterator[tuple[str, list[list[str]]]]:
    """Yields the title and the rows of each table; the first row has the names of the columns."""
    times = report.times
    total = max(times.wall_secs, 1e-9)
    rows = [["part", "seconds", "share"]]
    rows += [[_NAMES[n], f"{s:.1f}", f"{s / total:.1%}"] for n, s in times.secs.items()]
    yield "time", [*rows, ["sum", f"{sum(times.secs.values()):.1f}", f"of {times.wall_secs:.1f}"]]
    rows = [["attempt", "began", "duration", "steps", "redone", "end"]]
    for each in times.attempts:
        steps = f"{each.first} to {each.step}"
        rows.append(
            [str(each.number), _date(each.begin), clock(each.end - each.begin), steps]
            + [str(each.num_redone), report.end_of(each)]
        )
    yield "attempts", rows
    rows = [["evaluation", "number", "step", "last result"]]
    for folder, evaluations in report.evaluations.items():
        last = evaluations[-1]
        names = sorted(n for n in last.metrics if n != "global_step")
        metrics = ", ".join(f"{name} {number(last.metrics[name])}" for name in names)
        rows.append([folder, str(len(evaluations)), str(last.step), metrics])
    yield "evaluations", rows
    exports = [[n, str(len(p)), p[-1]] for n, p in report.exports.items()]
    yield "exports", [["exporter", "number", "newest"], *exports]
    yield "changes between attempts", [["change"], *([each] for each in report.changes())]


def _table(rows: Sequence[Sequence[str]]) -> str:
    colors = {_NAMES[name]: color for name, color in _COLORS.items()}
    lines = []
    for index, row in enumerate(rows):
        kind = "td" if index else "th"
        cells = []
        for cell in row:
            is_number = cell[:1].isdigit() and " " not in cell
            color = f'<i style="background:{colors[cell]}"></i>' if cell in colors else ""
            kind_of_cell = " class=n" if is_number else ""
            cells.append(f"<{kind}{kind_of_cell}>{color}{html.escape(cell)}</{kind}>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _timeline(times: phases.Times) -> str:
    """Returns columns of equal time, each divided by its parts; a mark begins each attempt."""
    column_secs = max(times.wall_secs, 1e-9) / _NUM_COLUMNS
    columns = [dict.fromkeys(phases.PARTS, 0.0) for _ in range(_NUM_COLUMNS)]
    begins: dict[int, float] = {}
    at = 0.0
    for each in times.intervals:
        begins.setdefault(each.attempt, at)
        end = at + each.secs
        for index in range(int(at / column_secs), min(int(end / column_secs) + 1, _NUM_COLUMNS)):
            part_secs = min(end, (index + 1) * column_secs) - max(at, index * column_secs)
            columns[index][each.part] += max(0.0, part_secs)
        at = end
    shapes = []
    for index, column in enumerate(columns):
        y, total = 0.0, sum(column.values()) or 1.0
        for part, secs in column.items():
            size = 120 * secs / total
            if size:
                shapes.append(
                    f'<rect x="{4 * index}" y="{y:.1f}" width="4.1" height="{size:.1f}" '
                    f'fill="{_COLORS[part]}"/>'
                )
            y += size
    for attempt, begin in begins.items():
        x = 4 * begin / column_secs
        shapes.append(f'<path d="M{x:.1f} 120v8" stroke="#000"/>')
        shapes.append(f'<text x="{x + 2:.1f}" y="134" font-size="9">{attempt}</text>')
    return f'<svg viewBox="0 0 {4 * _NUM_COLUMNS} 138" role="img">{"".join(shapes)}</svg>'


def _charts(report: Report) -> Iterator[str]:
    """Yields a chart for the loss, and one for each metric of the evaluations."""
    charts: dict[str, dict[str, Points]] = {"loss": {"train": report.times.losses}}
    for folder, evaluations in report.evaluations.items():
        names = dict.fromkeys(name for each in evaluations for name in each.metrics)
        for name in names:
            found = [(e.step, e.metrics[name]) for e in evaluations if name in e.metrics]
            numbers = [(s, float(v)) for s, v in found if np.ndim(v) == 0]
            if numbers and name != "global_step":
                charts.setdefault(name, {})[folder] = numbers
    for name, series in list(charts.items())[:_MOST_CHARTS]:
        yield _chart(name, series)


def _chart(title: str, series: Mapping[str, Points], *, is_line: bool = True) -> str:
    width, height, left = 440, 180, 60
    finite = {n: [(s, v) for s, v in each if math.isfinite(v)] for n, each in series.items()}
    finite = {n: each[:: 1 + len(each) // _MOST_POINTS] for n, each in finite.items()}
    both = [point for points in finite.values() for point in points]
    if not both:
        return ""
    (x0, x1), (y0, y1) = _ends(s for s, _ in both), _ends(v for _, v in both)
    shapes = [
        f'<text x="0" y="12" font-size="11">{y1:.4g}</text>'
        f'<text x="0" y="{height - 20}" font-size="11">{y0:.4g}</text>'
        f'<text x="{left}" y="{height - 4}" font-size="11">{x0:g}</text>'
        f'<text x="{width}" y="{height - 4}" font-size="11" text-anchor="end">{x1:g}</text>'
        f'<path d="M{left} 4V{height - 20}H{width}" stroke="#999" fill="none"/>'
    ]
    caption = html.escape(title)
    for index, (name, points) in enumerate(finite.items()):
        color = _LINE_COLORS[index % len(_LINE_COLORS)]
        caption += f'<span style="color:{color}">{html.escape(name)}</span>'
        places = [
            (
                left + (width - left) * (s - x0) / ((x1 - x0) or 1),
                height - 24 - (height - 32) * (v - y0) / ((y1 - y0) or 1),
            )
            for s, v in points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        if is_line:
            shapes.append(f'<polyline points="{path}" fill="none" stroke="{color}"/>')
        if len(places) < 50 or not is_line:
            shapes += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{color}"/>' for x, y in places
            ]
    svg = f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img">{"".join(shapes)}</svg>'
    return f"<figure><figcaption>{caption}</figcaption>{svg}</figure>"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _ends(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    return min(values), max(values)


def _date(secs: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(secs))
