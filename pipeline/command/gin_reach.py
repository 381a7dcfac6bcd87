"""Which bindings a run can read, found without running it.

Starting at what the driver itself calls, references and macros are followed. So are
configurables that code calls by their names, as gin binds those calls, too:

    @gin.configurable
    def input_fn(mode):
        return augmented(images(mode))  # Reads `augmented.level = 5`.

No line of the configuration refers to `augmented`, so the code has to be read. Each
name in it counts as a call. The answer errs on one side only: a binding called unread
is not read by any job.
"""

import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.command import gin_checks, gin_registry
from pipeline.command.gin_checks import Resolved
from pipeline.command.gin_reader import Binding, Config, ConfigError, Macro, Reference
from pipeline.command.gin_registry import CORE, Entry
from pipeline.process import refusals
from pipeline.strategy import strategies

# What the jobs call, whichever job it is: EvalSpec's bindings are read by
# --job=evaluate even where this one trains.
ROOTS = (
    "RunConfig",
    "Estimator",
    "TrainSpec",
    "EvalSpec",
    "PredictSpec",
    "ExportSpec",
    "train_and_evaluate",
    "find_learning_rate",
    *strategies.BY_EXECUTION,
)
_ANY_SCOPE = "*"


def check_read(config: Config, resolved: Sequence[Resolved]) -> None:
    """Checks that each binding and each macro is read by some job.

    Args:
      config: configuration as it was read.
      resolved: its bindings, each with the parameter that it sets.

    Raises:
      ConfigError: some are not read; lists them all, each with its line.
    """
    seen = _Reach(config, resolved)
    unread = [r for r in resolved if not seen.reads(r)]
    lines = [f"{r.binding.location}\n  {_why(r)}" for r in unread]
    defined = gin_checks.macros(config)
    for name, binding in defined.items():
        if name not in seen.macros:
            hint = refusals.near(name, sorted(seen.macros))
            lines.append(f"{binding.location}\n  no binding in use has %{name}.{hint}")
    if lines:
        raise ConfigError(
            "nothing reads these lines of the configuration:\n" + "\n".join(lines)
        )


def _why(resolved: Resolved) -> str:
    """Returns why no job reads a binding, and the line to write instead."""
    name, scope = gin_registry.short_name(resolved.entry), resolved.binding.scope
    if scope:
        return f"{name} is never called in the scope {scope}: refer to @{scope}/{name}."
    return (
        f"no job calls {name}: refer to @{name} where it is wanted, or delete the line."
    )


class _Reach:
    """The configurables that jobs call, each with the scopes in which they call it.

    Attributes:
      macros: names of the macros that are read.
    """

    def __init__(self, config: Config, resolved: Sequence[Resolved]) -> None:
        self.macros: set[str] = set()
        self._calls: set[tuple[str, str]] = set()
        self._definitions = gin_checks.macros(config)
        self._bindings: dict[str, list[Binding]] = {}
        for item in resolved:
            self._bindings.setdefault(item.entry.selector, []).append(item.binding)
        self._known = gin_registry.entries()
        self._by_name: dict[str, list[Entry]] = {}
        for entry in self._known.values():
            self._by_name.setdefault(entry.name, []).append(entry)
        for root in ROOTS:
            if f"{CORE}.{root}" in self._known:
                self._call(self._known[f"{CORE}.{root}"], "")

    def reads(self, resolved: Resolved) -> bool:
        """Returns whether some call reads a binding."""
        selector, scope = resolved.entry.selector, resolved.binding.scope
        return any(
            called == selector and _sees(active, scope)
            for called, active in self._calls
        )

    def _call(self, entry: Entry, scope: str) -> None:
        """Adds a call, and the calls that follow from its bindings and its code."""
        # Configurables may refer to each other in a circle.
        if (entry.selector, scope) in self._calls:
            return
        self._calls.add((entry.selector, scope))
        for binding in self._bindings.get(entry.selector, ()):
            if _sees(scope, binding.scope):
                self._visit(binding.value, scope)
        # The code of libraries knows nothing of the user's configurables.
        if entry.is_library:
            return
        names = set(_names(entry.target))
        # The names of scopes that code enters are not known: it may be any.
        inner = _ANY_SCOPE if "config_scope" in names else scope
        for name in names:
            for other in self._by_name.get(name, ()):
                self._call(other, inner)

    def _visit(self, value: Any, scope: str) -> None:
        """Adds the calls that come of a value which is read in a scope."""
        for item in gin_checks.nested(value):
            if isinstance(item, Reference):
                # An inner scope replaces the outer one, in gin.
                for entry in gin_registry.matches(item.name):
                    self._call(entry, item.scope or scope)
            elif isinstance(item, Macro) and item.name in self._definitions:
                self.macros.add(item.name)
                # gin evaluates the macro's value in a scope of the macro's name.
                for inner in (scope, item.name):
                    self._visit_once(item.name, inner)

    def _visit_once(self, macro: str, scope: str) -> None:
        """Visits a macro's value once in each scope: macros may lead in a circle."""
        if (f"%{macro}", scope) not in self._calls:
            self._calls.add((f"%{macro}", scope))
            self._visit(self._definitions[macro].value, scope)


def _sees(active: str, scope: str) -> bool:
    """Returns whether a call in the scope `active` reads a binding of `scope`."""
    return active == _ANY_SCOPE or f"{active}/".startswith(f"{scope}/" if scope else "")


def _names(target: Callable[..., Any]) -> Iterator[str]:
    """Yields names in the code and defaults of a target and of helpers that it calls.

    Helpers are functions and classes of the target's own package: a configurable may
    be called through any number of them.

    Args:
      target: function or class behind a configurable.
    """
    waiting, seen = _functions(target), set()
    while waiting:
        fn = inspect.unwrap(waiting.pop())
        if id(fn) in seen or not isinstance(fn, types.FunctionType):
            continue
        seen.add(id(fn))
        for default in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
            yield getattr(default, "__name__", "")
        names = set(_code_names(fn.__code__))
        yield from names
        package = fn.__module__.partition(".")[0]
        for holder in (fn.__globals__, *_modules(fn, names, package)):
            for name in names:
                helper = holder.get(name)
                if _package(helper) == package:
                    waiting.extend(_functions(helper))


def _functions(target: Any) -> list[Any]:
    """Returns the functions to read: of a class all methods, also of its own bases."""
    if inspect.isclass(target):
        package = _package(target)
        bases = [base for base in target.__mro__ if _package(base) == package]
        return [f for base in bases for f in vars(base).values() if callable(f)]
    return [target] if callable(target) else []


def _modules(
    fn: types.FunctionType, names: set[str], package: str
) -> Iterator[dict[str, Any]]:
    """Yields the contents of modules of a package that `fn` names: `nets.make`."""
    for name in names:
        value = fn.__globals__.get(name)
        if inspect.ismodule(value) and value.__name__.partition(".")[0] == package:
            yield vars(value)


def _code_names(code: types.CodeType) -> Iterator[str]:
    """Yields all names in a code object, and in functions inside of it."""
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_names(constant)


def _package(value: Any) -> str:
    """Returns the top-level package of a function or class; "" for other values."""
    return (getattr(value, "__module__", None) or "").partition(".")[0]
