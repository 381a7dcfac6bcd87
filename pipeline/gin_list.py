"""All that gin can configure, in words."""

import inspect
import itertools
from collections.abc import Iterator, Sequence

from pipeline import gin_config, gin_registry, package
from pipeline.gin_registry import Entry, Parameter

_MOST_CHARACTERS = 40


def lines(gin_files: Sequence[str], gin_params: Sequence[str]) -> Iterator[str]:
    """Lines for the user: each configurable with its arguments, by group.

    Args:
      gin_files: whose imports are listed too; may be none.
      gin_params: the same.

    Raises:
      ConfigError: anything wrong with them.
    """
    ours = [f"import {package.library(name)}" for name in package.LIBRARIES]
    gin_config.parse(gin_files, [*gin_params, *ours])
    entries = sorted(gin_registry.entries().values(), key=lambda e: (_group(e), e.name))
    for group, members in itertools.groupby(entries, _group):
        yield f"\n{group}"
        for entry in members:
            yield f"  {gin_registry.short_name(entry)}"
            for name, parameter in entry.parameters().items():
                yield f"    {name}{_value(parameter)}"


def _group(entry: Entry) -> str:
    """What a configurable is listed under: models, inputs, pipeline, keras.losses."""
    if entry.is_library:
        return entry.selector.rpartition(".")[0]
    module = getattr(entry.target, "__module__", None) or entry.selector
    parts = module.removeprefix(f"{package.INSTALLED_NAME}.").split(".")
    return parts[0]


def _value(parameter: Parameter) -> str:
    if parameter.required:
        return "  (required)"
    default = parameter.default
    named = inspect.isclass(default) or inspect.isfunction(default)
    text = default.__name__ if named else repr(default)
    short = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
    return f" = {short}"
