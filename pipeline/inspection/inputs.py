"""Looks at one input: shapes and dtypes, its batches, and how workers divide it."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from pipeline.contract.spec import ModeKeys
from pipeline.feed import feed as feed_lib
from pipeline.feed import tpu_feed
from pipeline.feed.batch import any_batch_size, pair_of
from pipeline.feed.dataset import InputContext, Source
from pipeline.inspection import pipelines, split
from pipeline.inspection.findings import Finding, plural
from pipeline.inspection.pipelines import Pipeline, Pipelines, is_whole
from pipeline.inspection.topology import Split
from pipeline.mistakes.checks import components
from pipeline.process.refusals import Refusal


@dataclasses.dataclass(frozen=True)
class InputLook:
    """What one input yields, and what is wrong with it.

    Attributes:
      mode: mode in which model_fn gets it.
      lines: lines of the report.
      findings: mistakes and doubts.
      element_spec: specs `(features, labels)` of one replica's batch; None where
        input_fn failed.
    """

    mode: str
    lines: list[str]
    findings: list[Finding]
    element_spec: Any


def look(
    source: Source,
    parts: Split,
    *,
    title: str,
    secs: float,
    num_batches: int = 1,
    has_steps: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> InputLook:
    """Calls an input_fn, reads what it yields, and judges how it is divided.

    Args:
      source: the input_fn.
      parts: pipelines among which it is divided.
      title: name of the input, "train" or "eval".
      secs: seconds that this may take, roughly.
      num_batches: batches per replica and step.
      has_steps: whether something else than the data's end ends the pass.
      clock: function that returns seconds.
    """
    named = f"input_fn {source.name}, mode {source.mode!r}"
    if source.yields_global_batches:
        found, findings = _shared(source, parts, named, secs=secs, clock=clock)
    else:
        found = pipelines.build(source, parts, secs=secs, clock=clock)
        findings = split.judge(found, named, source.mode)
    first = next((each for each in found.looked_at if not each.error), None)
    lines = [f"input {title}: {source.name}, mode {source.mode!r}"]
    if first is None:
        lines.append("  fails, see below; what follows is of one replica's input")
        return InputLook(source.mode, lines, findings, _spec_alone(source))
    if first.is_endless and not has_steps and source.mode == ModeKeys.EVAL:
        error = str(feed_lib.endless_input_error(source.input_fn))
        findings.append(Finding(error, is_certain=True))
    findings += _not_static(source, parts)
    spec = pair_of(first.spec)
    lines += [f"  {line}" for line in _tensors(spec)]
    if source.yields_global_batches:
        if parts.num_replicas > 1:
            spec = tf.nest.map_structure(any_batch_size, spec)
        lines += _cut(first, parts, num_batches)
    else:
        lines += _divided(first, parts, num_batches)
    lines += _table(found)
    return InputLook(source.mode, lines, findings, spec)


def _shared(
    source: Source, parts: Split, named: str, *, secs: float, clock: Any
) -> tuple[Pipelines, list[Finding]]:
    """Calls an input_fn whose batches the driver divides, as two workers would."""
    one = Split(1, parts.num_replicas)
    if parts.num_pipelines > 1:
        source = source.in_one_order()
    found = pipelines.build(source, one, secs=secs / 2, clock=clock)
    findings = split.judge(found, named, source.mode)
    (first,) = found.looked_at
    if first.reading is None or not len(first.reading):
        return found, findings
    rows, replicas = first.reading.rows, parts.num_replicas
    if rows < replicas and parts.in_step:
        findings.append(
            Finding(
                f"{named} yields global batches of {plural(rows, 'example')} for "
                f"{replicas:,} replicas: {replicas - rows:,} of them compute for "
                f"nothing in each step: write batch({replicas}) or more."
            )
        )
    if parts.num_pipelines > 1:
        again = pipelines.build(source, one, secs=secs / 2, clock=clock).looked_at[0]
        number = min(len(first.reading), len(again.reading or ()))
        seen = [each.reading.digests[:number] for each in (first, again) if number]
        if first.digest != again.digest or len(seen) > 1 and seen[0] != seen[1]:
            findings.append(
                Finding(
                    f"{named} takes no input_context and yields other data at a second "
                    "call, and each worker takes its part of each batch, so that some "
                    "examples are left out and others come twice: seed what it draws, "
                    "or take input_context.",
                    is_certain=True,
                )
            )
    return found, findings


def _not_static(source: Source, parts: Split) -> Iterator[Finding]:
    """Finds what a TPU could not be fed with."""
    try:
        if parts.is_static:
            tpu_feed.dataset_for(source, parts.context(0))
    except Refusal as error:
        yield Finding(str(error), is_certain=True)


def _spec_alone(source: Source) -> Any:
    """Returns the specs that an input_fn yields for one replica; None where none."""
    try:
        return pair_of(source.dataset(InputContext()).element_spec)
    except Exception:
        return None  # What fails was said of the workers' pipelines.


def _tensors(element_spec: Any) -> Iterator[str]:
    """Yields a line for each tensor: its place, dtype and shape."""
    rows = []
    for place, spec in components(element_spec):
        shape = getattr(spec, "shape", None)
        rank = None if shape is None else shape.rank
        sizes = "of any shape" if rank is None else str(shape.as_list())
        kind = type(spec).__name__.removesuffix("Spec").removesuffix("Tensor").lower()
        dtype = getattr(getattr(spec, "dtype", None), "name", "")
        rows.append((place, " ".join(filter(None, [dtype, sizes, kind]))))
    width = max(len(place) for place, _ in rows)
    return (f"{place:<{width}}  {words}" for place, words in rows)


def _cut(first: Pipeline, parts: Split, num_batches: int) -> Iterator[str]:
    """Yields what becomes of the batches of an input_fn without input_context."""
    rows = first.reading.rows if first.reading else 0
    below, more = divmod(rows, parts.num_replicas)
    each = f"{below} or {below + 1}" if more else f"{below}"
    if not parts.in_step:
        which = "each batch"
        if parts.num_pipelines > 1:
            which = f"one in {parts.num_pipelines:,} batches"
        yield f"  takes no input_context: a worker's step is {which} of {rows:,}"
        return
    text = f"  takes no input_context: global batch {rows:,}"
    if parts.num_replicas > 1:
        text += f", cut into {each} for each of {parts.num_replicas:,} replicas"
    yield text
    if parts.num_pipelines > 1:
        yield f"  each of {parts.num_pipelines:,} workers reads all of the data"
    yield from _in_steps(rows, num_batches)


def _divided(first: Pipeline, parts: Split, num_batches: int) -> Iterator[str]:
    """Yields what the batches of an input_fn with input_context add up to."""
    rows = first.reading.rows if first.reading else 0
    if parts.num_pipelines > 1:
        yield f"  takes input_context: {parts.num_pipelines:,} pipelines, one a worker"
    if not parts.in_step:
        yield f"  each batch of {rows:,} examples is a step of one worker"
        return
    total = rows * parts.num_replicas
    text = f"  global batch {total:,}"
    if parts.num_replicas > 1:
        text += f" = {rows:,} x {plural(parts.num_replicas, 'replica')}"
    if parts.num_pipelines > 1 and parts.replicas_each > 1:
        text += f", of which {parts.replicas_each} take turns in a pipeline"
    yield text
    yield from _in_steps(total, num_batches)


def _in_steps(total: int, num_batches: int) -> Iterator[str]:
    if num_batches > 1:
        yield f"  a step takes {num_batches} of them: {total * num_batches:,} examples"


def _table(found: Pipelines) -> Iterator[str]:
    """Yields a line for each worker that was read, and what was read in all."""
    several = found.split.num_pipelines > 1
    rows = [("worker" if several else "", "files", "examples", "batches")]
    for each in found.looked_at:
        if each.error or each.reading is None:
            rows.append((f"{each.worker}", "fails", "", ""))
            continue
        more = "" if each.reading.is_whole else "+"
        files = "-" if each.files is None else f"{len(each.files):,}"
        counts = (len(each.reading), each.reading.batches)
        worker = f"{each.worker}" if several else ""
        rows.append((worker, files, *(f"{count:,}{more}" for count in counts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}"
    fine = [each for each in found.looked_at if each.reading is not None]
    if any(not is_whole(each) for each in fine):
        endless = any(each.is_endless for each in fine)
        yield f"  + {'endless' if endless else 'and more'}"
    if several and not found.whole.error and len(fine) == len(found.looked_at):
        called = f"{len(found.called):,} of {found.split.num_pipelines:,}"
        short = "" if found.all_called else ", for lack of time"
        yield f"  called for {called} workers{short}"
        yield f"  {split.in_words(found)}"
