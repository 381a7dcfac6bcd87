"""Tells what a training saves, evaluates and exports, and when, and when it ends."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.checkpoints import checkpoint
from pipeline.contract.run_config import RunConfig
from pipeline.inspection.findings import plural, size
from pipeline.model_dir import paths
from pipeline.roles import evaluation
from pipeline.roles.specs import EvalSpec, TrainSpec, export_folder


def lines(
    config: RunConfig,
    train_spec: TrainSpec,
    eval_specs: Sequence[EvalSpec],
    *,
    checkpoint_bytes: int | None,
    warm_start_from: Any = None,
) -> Iterator[str]:
    """Yields lines: the beginning, the end, and all that is written between them.

    Args:
      config: RunConfig with a model_dir.
      train_spec: TrainSpec of the training.
      eval_specs: EvalSpecs of its evaluations.
      checkpoint_bytes: size of a checkpoint's values; None where nobody knows.
      warm_start_from: WarmStartSettings, or None.
    """
    latest = checkpoint.latest(config.model_dir)
    begin = "initial values"
    if latest is not None:
        begin = paths.shown(latest)
    elif warm_start_from is not None:
        begin = f"a warm start from {warm_start_from.ckpt_to_initialize_from}"
    yield f"begins with {begin}, ends {_end(train_spec)}"
    yield from _checkpoints(config, checkpoint_bytes)
    yield f"summaries {_every(config.save_summary_steps)}"
    yield f"log {_every(config.log_step_count_steps)}"
    for hook in train_spec.hooks:
        every = getattr(hook, "every_steps", None)
        yield f"hook {_name(hook)}{f' {_every(every)}' if every else ''}"
    for tool in config.tools:
        yield f"tool {_name(tool)}, at each summary and evaluation"
    for spec in eval_specs:
        yield from _evaluation(config, spec, eval_specs)


def _end(spec: TrainSpec) -> str:
    limits = {
        "at step": spec.max_steps,
        "after examples:": spec.max_examples,
        "after passes:": spec.max_epochs,
    }
    found = [f"{words} {number:,}" for words, number in limits.items() if number]
    if spec.max_secs is not None:
        unit = "" if isinstance(spec.max_secs, str) else " s"
        found.append(f"after {spec.max_secs}{unit}")
    return " or ".join(found) or "with the input"


def _checkpoints(config: RunConfig, num_bytes: int | None) -> Iterator[str]:
    if config.save_checkpoints_steps == 0:
        yield "checkpoints: none"
        return
    when = f"every {config.save_checkpoints_secs} s"
    if config.save_checkpoints_steps:
        when = _every(config.save_checkpoints_steps)
    text = f"checkpoints at the first step, {when}, and at the end"
    if config.keep_checkpoint_every_n_steps:
        text += f"; for good {_every(config.keep_checkpoint_every_n_steps)}"
    if config.keep_checkpoint_steps:
        text += f"; for good at {list(config.keep_checkpoint_steps)}"
    yield text
    kept = config.keep_checkpoint_max
    text = f"  {'the last ' + str(kept) if kept else 'all'} are kept"
    if num_bytes is not None:
        text += f", {size(num_bytes)} each"
        text += f": {size(num_bytes * kept)}" if kept else ""
    yield text + ", beside the input's position"


def _evaluation(
    config: RunConfig, spec: EvalSpec, eval_specs: Sequence[EvalSpec]
) -> Iterator[str]:
    when = _every(spec.every_steps) if spec.every_steps else "at checkpoints"
    inline = config.evaluates_inline
    least = spec.throttle_secs
    if least is None:
        least = 0 if inline else evaluation.THROTTLE_SECS
    text = f"evaluation{f' {spec.name}' if spec.name else ''} {when}"
    if least:
        text += f", {least:g} s apart at least"
    text += ", at the start" if spec.at_start and inline else ""
    batches = "of all examples" if spec.steps is None else "of at most "
    if spec.steps is not None:
        batches += plural(spec.steps, "step")
    yield f"{text}, and at the end, {batches}"
    for rule in (*spec.early_stopping, *spec.keep_best):
        yield f"  {rule}"
    for exporter in spec.exporters:
        folder = os.path.join(export_folder("", spec, eval_specs), exporter.name)
        yield f"  {_name(exporter)} to model_dir/{folder}"


def _every(steps: int | None) -> str:
    return f"every {plural(steps, 'step')}" if steps else "never"


def _name(value: Any) -> str:
    return type(value).__name__
