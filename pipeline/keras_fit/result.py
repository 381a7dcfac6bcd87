# SPDX-License-Identifier: Apache-2.0
"""Result of `fit`: the model, and the history as Keras has it."""

import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from ..estimator.estimator import Estimator

_WIDTH, _HEIGHT = 240, 80  # Of the curve, in pixels.
_COLORS = {"loss": "#1f77b4", "val_loss": "#ff7f0e"}
_MOST_ROWS = 20


class FitResult(NamedTuple):
    """Result of `fit`.

    Attributes:
      model: compiled model with the trained weights and optimizer, outside of any strategy, in the
        precision of the training; None in a worker or server of parameter servers, which serve
        the chief.
      history: values by Keras' names, such as `loss` and `val_loss`, one for each epoch.
      estimator: the Estimator, to evaluate, predict and export.
      epoch: numbers of the epochs in the history, from `initial_epoch` on.
      params: `epochs`, `steps` of an epoch and `verbose`, as Keras' History.
    """

    model: keras.Model  # Not `| None`: each program for one machine would have to check it.
    history: dict[str, list[Any]]
    estimator: Estimator
    epoch: list[int]
    params: dict[str, Any]

    @property
    def is_chief(self) -> bool:
        """Whether this is the one process of a cluster that writes files, such as an export."""
        return self.estimator.config.is_chief

    def __repr__(self) -> str:
        """Returns the number of epochs, the last values and the directory."""
        epochs = max(map(len, self.history.values()), default=0)
        values = {name: each[-1] for name, each in self.history.items() if len(each) == epochs}
        last = "".join(f"{k}={v:.4g}, " for k, v in values.items() if isinstance(v, float))
        return f"FitResult(epochs={epochs}, {last}model_dir={self.estimator.model_dir!r})"

    def _repr_html_(self) -> str:
        """Returns the curve of the losses, and a table of the last epochs."""
        # A validation_freq above 1 leaves epochs without values.
        full = {n: v for n, v in self.history.items() if len(v) == len(self.epoch)}
        rows = [
            [epoch + 1, *map(_text, values)]
            for epoch, *values in zip(self.epoch, *full.values(), strict=True)
        ][-_MOST_ROWS:]
        cells = [f"<td>{'</td><td>'.join(html.escape(str(v)) for v in row)}</td>" for row in rows]
        names = "".join(f"<th>{html.escape(name)}</th>" for name in ("epoch", *full))
        table = f"<table><tr>{names}</tr><tr>{'</tr><tr>'.join(cells)}</tr></table>"
        return f"<div>{_curve(self.history)}{table}{html.escape(self.estimator.model_dir)}</div>"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curve(history: dict[str, list[Any]]) -> str:
    """Returns the losses as an SVG image; nothing for fewer than two numbers."""
    lines: dict[str, Sequence[float]] = {
        name: values
        for name in _COLORS
        if len(values := [v for v in history.get(name, []) if math.isfinite(v)]) > 1
    }
    if not lines:
        return ""
    low = min(map(min, lines.values()))
    span = max(map(max, lines.values())) - low or 1.0
    shapes = []
    for name, values in lines.items():
        points = " ".join(
            f"{_WIDTH * i / (len(values) - 1):.1f},{_HEIGHT * (1 - (v - low) / span):.1f}"
            for i, v in enumerate(values)
        )
        shapes.append(
            f'<polyline fill="none" stroke="{_COLORS[name]}" stroke-width="2" points="{points}">'
            f"<title>{name}</title></polyline>"
        )
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="-4 -4 {_WIDTH + 8} {_HEIGHT + 8}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(shapes)}</svg>'
