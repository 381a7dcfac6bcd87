"""Checks a configuration that was read: names, types, missing arguments, and calls.

gin itself takes a value of any type, an object in place of its factory, and a function
without an argument that it needs: these fail later, or never. It reports an unknown
name without a hint. Here each statement is checked before gin sees it.
"""

import ast
import dataclasses
import inspect
import keyword
import pathlib
from collections.abc import Iterator
from typing import Any

from pipeline.command import gin_registry
from pipeline.command.gin_reader import (
    Binding,
    Config,
    ConfigError,
    Location,
    Macro,
    Reference,
)
from pipeline.command.gin_registry import CORE, Entry, Parameter
from pipeline.command.gin_types import accepts
from pipeline.process import package, refusals

# Parameters that take functions or factories, never their results ...
_FUNCTIONS = {
    f"{CORE}.Estimator": ("model_fn", "modules"),
    f"{CORE}.TrainSpec": ("input_fn",),
    f"{CORE}.EvalSpec": ("input_fn",),
    f"{CORE}.PredictSpec": ("input_fn",),
    f"{CORE}.RunConfig": ("train_distribute", "eval_distribute"),
}
# ... and those that take objects, never their classes.
_OBJECTS = {
    f"{CORE}.TrainSpec": ("hooks", "saving_listeners"),
    f"{CORE}.EvalSpec": ("hooks", "exporters"),
    f"{CORE}.PredictSpec": ("hooks",),
    f"{CORE}.train_and_evaluate": ("eval_spec",),
}
# Arguments that the driver supplies to an input_fn, and to the factory of a module.
_SUPPLIED = {
    "input_fn": ("mode", "input_context", "params", "config", "first_batch"),
    "modules": ("params", "config"),
}
_SET_BY_FLAGS = {
    "Estimator.config": "bind its fields, such as RunConfig.save_checkpoints_steps",
    "RunConfig.cluster": "set the environment variable TF_CONFIG",
}


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A binding, and the parameter of a configurable that it sets.

    Attributes:
      binding: the binding.
      entry: the configurable.
      parameter: the parameter; None where the configurable takes any name.
    """

    binding: Binding
    entry: Entry
    parameter: Parameter | None


def macros(config: Config) -> dict[str, Binding]:
    """Returns the last definition of each macro, by name."""
    return {b.name: b for b in config.bindings if not b.parameter}


def nested(value: Any) -> Iterator[Any]:
    """Yields the references and macros in a value, at any depth of lists and dicts."""
    if isinstance(value, (Reference, Macro)):
        yield value
    elif isinstance(value, dict):
        for item in (*value.keys(), *value.values()):
            yield from nested(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nested(item)


def expand(value: Any, defined: dict[str, Binding], depth: int = 0) -> Any:
    """Returns `value` with its macros replaced by their values.

    Args:
      value: a value as read.
      defined: the macros, by name.
      depth: macros replaced so far on the way to this value.
    """
    # The depth ends macros that stand for each other, which `check` refuses.
    if isinstance(value, Macro) and value.name in defined and depth < 20:
        return expand(defined[value.name].value, defined, depth + 1)
    if isinstance(value, dict):
        return {k: expand(v, defined, depth) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(expand(item, defined, depth) for item in value)
    return value


def check(config: Config) -> list[Resolved]:
    """Checks every binding, and finds its configurable.

    Args:
      config: all statements; the modules that it imports have been imported.

    Returns:
      The bindings of parameters, in their order.

    Raises:
      ConfigError: a name is unknown or ambiguous, a value has the wrong type, a factory
        stands where an object belongs or the other way round, or a function lacks an
        argument.
    """
    defined = macros(config)
    _check_macros(defined)
    found = []
    for binding in config.bindings:
        _check_references(binding, defined)
        if binding.parameter:
            resolved = _resolve(binding)
            value = expand(binding.value, defined)
            _check_calls(resolved, value)
            _check_type(resolved, value, _origin(binding.value, defined))
            found.append(resolved)
    _check_complete(found, defined)
    return found


def find(name: str, location: Location) -> Entry:
    """Returns the configurable that `name` means.

    Args:
      name: a selector, or its last parts.
      location: the statement with the name.

    Raises:
      ConfigError: `name` means none, with near names or the missing import; or it means
        several.
    """
    found = gin_registry.matches(name)
    if len(found) == 1:
        return found[0]
    if found:
        names = sorted(gin_registry.short_name(entry) for entry in found)
        raise ConfigError(
            f"{location}\n{name} may mean {' or '.join(names)}: write one of these."
        )
    module = _module_that_defines(name.rpartition(".")[2])
    if module:
        flag = f'--gin_param="import {module}"'
        raise ConfigError(
            f"{location}\n{name} is defined in {module}, which no gin file imports. "
            f"Add the line\n  import {module}\nto the gin file, or {flag}."
            f"{_whose(module)}"
        )
    known = gin_registry.entries().values()
    hint = refusals.near(
        name.rpartition(".")[2], sorted({entry.name for entry in known})
    )
    raise ConfigError(
        f"{location}\n{name} is not a known function or class.{hint} One of your own "
        "needs @gin.configurable, and its module a line `import ...` in the gin file."
    )


def _check_macros(defined: dict[str, Binding]) -> None:
    """Checks that no macro is defined by itself, directly or through others."""
    for name, binding in defined.items():
        seen, waiting = [name], [binding.value]
        while waiting:
            for item in nested(waiting.pop()):
                if not isinstance(item, Macro) or item.name not in defined:
                    continue
                if item.name == name:
                    chain = " = ".join(f"%{n}" for n in (*seen, name))
                    raise ConfigError(
                        f"{binding.location}\nmacros stand for each other: {chain}. "
                        f"Write {name} = VALUE."
                    )
                if item.name not in seen:
                    seen.append(item.name)
                    waiting.append(defined[item.name].value)


def _check_references(binding: Binding, defined: dict[str, Binding]) -> None:
    """Checks that each reference and macro in a binding's value means something."""
    for item in nested(binding.value):
        if isinstance(item, Reference):
            find(item.name, binding.location)
        elif item.name not in defined and not gin_registry.is_constant(item.name):
            hint = refusals.near(item.name, sorted(defined), sign="%")
            raise ConfigError(
                f"{binding.location}\nnothing defines %{item.name}.{hint} Define it: "
                f"{item.name} = ..., or on the command line --gin.{item.name}=..."
            )


def _resolve(binding: Binding) -> Resolved:
    """Finds the parameter that a binding sets."""
    entry = find(binding.name, binding.location)
    known = entry.parameters()
    if binding.parameter in known:
        return Resolved(binding, entry, known[binding.parameter])
    name = f"{entry.name}.{binding.parameter}"
    if entry.selector.startswith(f"{CORE}.") and name in _SET_BY_FLAGS:
        raise ConfigError(
            f"{binding.location}\n{name} is set by the driver: {_SET_BY_FLAGS[name]}."
        )
    if binding.parameter in entry.denylist or entry.allowlist:
        raise ConfigError(
            f"{binding.location}\n{name} cannot be set by gin, which may set "
            f"{', '.join(known) or 'nothing'} there: delete the line."
        )
    if entry.takes_any():
        return Resolved(binding, entry, None)
    hint = refusals.near(binding.parameter, list(known))
    raise ConfigError(
        f"{binding.location}\n{entry.name} has no parameter {binding.parameter!r}."
        f"{hint} It has {', '.join(known) or 'none'}."
    )


def _check_type(resolved: Resolved, value: Any, origin: str) -> None:
    binding, parameter = resolved.binding, resolved.parameter
    if parameter is None or accepts(parameter.annotation, value):
        return
    # An annotation may leave out the default, as in `steps: int = None`.
    if not parameter.required and _same(value, parameter.default):
        return
    annotation = inspect.formatannotation(parameter.annotation)
    hint = ""
    if isinstance(value, float) and value.is_integer():
        hint = f" Write {int(value)}."
    elif isinstance(value, str) and _literal(value) is not None:
        hint = f" Write it without quotes: {value}."
    raise ConfigError(
        f"{binding.location}\n{resolved.entry.name}.{binding.parameter} takes "
        f"{annotation}, got {value!r} of type {type(value).__name__}.{hint}{origin}"
    )


def _origin(value: Any, defined: dict[str, Binding]) -> str:
    """Returns lines that say where the macros in a value are defined, for messages."""
    names = [item.name for item in nested(value) if isinstance(item, Macro)]
    known = [name for name in names if name in defined]
    return "".join(f"\n%{n} is set in {defined[n].location}" for n in known)


def _check_calls(resolved: Resolved, value: Any) -> None:
    """Checks that a value is called where an object belongs, and only there."""
    selector, name = resolved.entry.selector, resolved.binding.parameter
    where = f"{resolved.binding.location}\n{resolved.entry.name}.{name}"
    for item in nested(value):
        if not isinstance(item, Reference):
            continue
        without = repr(dataclasses.replace(item, evaluate=False))
        if item.evaluate and name in _FUNCTIONS.get(selector, ()):
            raise ConfigError(
                f"{where} takes a function that is called later, under the strategy's "
                f"scope; {item!r} is its result. Write {without} instead of {item!r}."
            )
        if not item.evaluate and name in _OBJECTS.get(selector, ()):
            raise ConfigError(
                f"{where} takes objects, and {item!r} makes one. Write {without}() "
                f"instead of {item!r}."
            )


def _check_complete(found: list[Resolved], defined: dict[str, Binding]) -> None:
    """Checks that each function that is called gets all arguments that it requires."""
    bound = {(r.entry.selector, r.binding.parameter) for r in found}
    for resolved in found:
        location = resolved.binding.location
        supplied = _SUPPLIED.get(resolved.binding.parameter, ())
        for reference in _called(resolved, defined):
            entry = find(reference.name, location)
            for name, declared in entry.parameters().items():
                is_set = name in supplied or (entry.selector, name) in bound
                if declared.required and not is_set:
                    raise ConfigError(
                        f"{location}\n{entry.name}.{name} has no default and is not "
                        f"set: write {entry.name}.{name} = ..."
                    )


def _called(resolved: Resolved, defined: dict[str, Binding]) -> Iterator[Reference]:
    """Yields the functions that a binding calls at once, or the driver calls for it."""
    parameter = resolved.binding.parameter
    # Not so a model_fn, which gets the modules, or a row, which gets the RunConfig.
    by_the_driver = parameter in ("modules", "input_fn") and parameter in (
        _FUNCTIONS.get(resolved.entry.selector, ())
    )
    for item in nested(expand(resolved.binding.value, defined)):
        if isinstance(item, Reference) and (item.evaluate or by_the_driver):
            yield item


def _same(value: Any, default: Any) -> bool:
    # In Python, True == 1 == 1.0.
    return type(value) is type(default) and value == default


def _literal(text: str) -> int | float | bool | None:
    """Returns the number that a text spells; None where it spells none."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, (int, float, bool)) else None


def _module_that_defines(name: str) -> str | None:
    """Returns the module with a configurable `name`; None where none is found.

    The sources of this project and of the current folder are searched. Nothing is
    imported, for an import runs the user's code.
    """
    for library in package.LIBRARIES:
        for path in sorted((package.HOME / library).glob("*.py")):
            if _defines(path, name):
                return package.library(library)
    here = pathlib.Path.cwd()
    for path in (*sorted(here.glob("*.py")), *sorted(here.glob("*/*.py"))):
        module = _name_of(path.relative_to(here))
        if module and _defines(path, name):
            return module
    return None


def _name_of(path: pathlib.Path) -> str:
    """Returns the name to import a file by; "" where Python could not read it."""
    parts = path.with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    importable = all(p.isidentifier() and not keyword.iskeyword(p) for p in parts)
    return ".".join(parts) if importable else ""


def _whose(module: str) -> str:
    """Says that another package hides `module`'s short name; "" where none does."""
    name = module.removeprefix(f"{package.INSTALLED_NAME}.")
    other = package.other_library(name) if name in package.LIBRARIES else None
    return f"\nHere `import {name}` is {other}, another package." if other else ""


def _defines(path: pathlib.Path, name: str) -> bool:
    """Returns whether a source file has a configurable `name` at its top level."""
    try:
        source = path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # A link to nothing, or a file that this user may not read.
        return False
    # Most files are out of the question, and parsing takes long.
    if name not in source or "configurable" not in source:
        return False
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(
        isinstance(node, kinds)
        and node.name == name
        and any("configurable" in ast.dump(line) for line in node.decorator_list)
        for node in tree.body
    )
