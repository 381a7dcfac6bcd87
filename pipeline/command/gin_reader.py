"""Reads gin files and command-line bindings into statements, without resolving a name.

gin's own parser decides about syntax. gin would bind each line as it reads it. Reading
first and binding later lets the checks see the whole configuration, with the line that
each value comes from.
"""

import dataclasses
import difflib
import io
import pathlib
import re
import shlex
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

import gin

from pipeline.process import package
from pipeline.process.refusals import Refusal

COMMAND_LINE = "--gin_param"

_KEY = re.compile(r"[A-Za-z_][\w/.]*")
_MACRO_NAMES = ("macro", "gin.macro")
# What users write for Python's constants, as in YAML and JSON.
_LITERALS = {"true": "True", "false": "False", "none": "None", "null": "None"}


class ConfigError(Refusal, ValueError):
    """A configuration that cannot be run; the message has the line to write instead."""


@dataclasses.dataclass(frozen=True)
class Location:
    """The place of a statement: its source, its line from 1, and the line's text."""

    source: str
    line: int
    text: str

    def __str__(self) -> str:
        if self.source == COMMAND_LINE:
            return f"{self.source}: {self.text.strip()}"
        return f"{self.source} line {self.line}: {self.text.strip()}"


@dataclasses.dataclass(frozen=True)
class Reference:
    """A value `@scope/name`, or `@scope/name()` where `evaluate`."""

    scope: str
    name: str
    evaluate: bool

    def __repr__(self) -> str:
        return f"@{_scoped(self.scope, self.name)}{'()' if self.evaluate else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """A value `%name`."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Binding:
    """`scope/name.parameter = value`, or a macro's `name = value` with parameter ''."""

    scope: str
    name: str
    parameter: str
    value: Any
    location: Location

    @property
    def key(self) -> str:
        """The text left of the equals sign."""
        name = _scoped(self.scope, self.name)
        return f"{name}.{self.parameter}" if self.parameter else name

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r}"


@dataclasses.dataclass(frozen=True)
class Import:
    """`import module`; `text` is the statement as gin writes it."""

    module: str
    text: str
    location: Location


@dataclasses.dataclass
class Config:
    """All statements in the order in which they count: a later binding wins."""

    imports: list[Import] = dataclasses.field(default_factory=list)
    bindings: list[Binding] = dataclasses.field(default_factory=list)

    def text(self) -> str:
        """Returns all statements as one gin text, imports first."""
        lines = [statement.text for statement in self.imports]
        return "\n".join([*lines, *map(str, self.bindings), ""])


def _scoped(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name


def places() -> list[pathlib.Path]:
    """Returns the folders that are searched for a gin file; the first match wins."""
    roots = (pathlib.Path.cwd(), package.HOME)
    return list(
        dict.fromkeys(place for root in roots for place in (root, root / "gin"))
    )


def available() -> list[pathlib.Path]:
    """Returns the gin files that are found by name alone."""
    found = (sorted(p.glob("*.gin")) for p in places() if p.name == "gin")
    by_name = {path.name: path for paths in found for path in paths}
    return list(by_name.values())


def find_file(name: str, beside: pathlib.Path | None = None) -> pathlib.Path:
    """Returns the path of a gin file.

    Args:
      name: a path, or the name of a file in one of `places()`.
      beside: the file that includes it; its folder is searched first.

    Raises:
      ConfigError: there is no such file; names the folders and the nearest file names.
    """
    path = pathlib.Path(name).expanduser()
    searched = [beside.parent] if beside else []
    searched = [path.parent] if path.is_absolute() else [*searched, *places()]
    for place in searched:
        if (place / path).is_file():
            return place / path
    known = {found.name for place in searched for found in place.glob("*.gin")}
    near = difflib.get_close_matches(path.name, sorted(known), n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    listed = "\n  ".join(str(place) for place in searched)
    raise ConfigError(f"no gin file {name!r}.{hint} Searched:\n  {listed}")


def read(gin_files: Sequence[str], gin_params: Sequence[str]) -> Config:
    """Reads files with their includes, then command-line bindings.

    Args:
      gin_files: names for `find_file`.
      gin_params: bindings, `name.parameter=value` or `MACRO=value`.

    Raises:
      ConfigError: a file is missing, or a text is not gin.
    """
    config = Config()
    for name in gin_files:
        _read_file(find_file(name), config, ())
    for text in gin_params:
        _read_text(text, COMMAND_LINE, config)
    return config


def _read_file(
    path: pathlib.Path, config: Config, including: tuple[pathlib.Path, ...]
) -> None:
    if path in including:
        chain = " includes ".join(str(p) for p in (*including, path))
        raise ConfigError(
            f"gin files include each other: {chain}. Delete one of these lines."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no gin file that can be read: {error}. It must be UTF-8."
        ) from error
    _read_text(text, str(path), config, (*including, path))


def _read_text(
    text: str, source: str, config: Config, including: tuple[pathlib.Path, ...] = ()
) -> None:
    lines = text.splitlines() or [""]

    def location_of(line: int) -> Location:
        return Location(source, line, lines[min(line, len(lines)) - 1])

    for statement in _statements(text, location_of):
        kind = type(statement).__name__
        location = location_of(statement.location.line_num)
        if kind == "IncludeStatement":
            beside = including[-1] if including else None
            included = _at(location, find_file, statement.filename, beside)
            _read_file(included, config, including)
        elif kind == "ImportStatement":
            _check_import(statement.module, location)
            config.imports.append(
                Import(statement.module, statement.format(), location)
            )
        elif kind == "BindingStatement":
            config.bindings.append(_binding(statement, location))


def _statements(text: str, location_of: Any) -> Iterator[Any]:
    line = 1
    try:
        for statement in gin.config_parser.ConfigParser(io.StringIO(text), _Delegate()):
            line = statement.location.line_num
            yield statement
    except (RecursionError, TypeError, ValueError) as error:
        # A file that this one includes is read while this generator waits.
        if isinstance(error, ConfigError):
            raise
        # Brackets too deep, a list as a key: gin raises no SyntaxError for these.
        raise ConfigError(
            f"{location_of(line)}\ngin cannot read what follows: {error}."
        ) from error
    except (SyntaxError, tokenize.TokenError) as error:
        # A TokenError is (message, (line, column)).
        at_end = isinstance(error, tokenize.TokenError)
        message, line = (
            (error.args[0], error.args[1][0]) if at_end else (error.msg, error.lineno)
        )
        location = location_of(line or 1)
        if location.source == COMMAND_LINE:
            raise ConfigError(_param_text(text, str(message))) from error
        message = str(message).splitlines()[-1].strip()
        raise ConfigError(
            f"{location.source} line {location.line}: gin cannot read this line: "
            f"{message}\n  {location.text.strip()}"
        ) from error


def _param_text(text: str, message: str) -> str:
    """Returns the error for a binding on the command line that is not gin."""
    key, equals, value = (part.strip() for part in text.partition("="))
    start = f"cannot read {COMMAND_LINE}={text}:"
    if not equals or not _KEY.fullmatch(key) or not value:
        return (
            f"{start} a binding is NAME=VALUE or function.parameter=VALUE, for example "
            f'{COMMAND_LINE}="TrainSpec.max_steps=500" or --gin.TRAIN_STEPS=500.'
        )
    if value.lower() in _LITERALS:
        value = _LITERALS[value.lower()]
        return f"{start} write {COMMAND_LINE}={key}={value} or --gin.{key}={value}."
    if value[0] in "@%([{'\"":
        return (
            f"{start} {message.splitlines()[-1].strip()}\nThe shell takes quotes away: "
            f"put the whole binding into quotes, {COMMAND_LINE}={shlex.quote(text)}, "
            "and each string in it into quotes of its own."
        )
    return (
        f"{start} {value} is no Python value. The shell has taken its quotes away; a "
        f"string is written\n  {COMMAND_LINE}={_quoted(f'{key}={value!r}')}\nor\n"
        f"  --gin.{key}={_quoted(repr(value))}"
    )


def _quoted(text: str) -> str:
    """Returns a text as a shell takes it, in double quotes where that is enough."""
    risky = any(character in text for character in '"$`\\!')
    return shlex.quote(text) if risky else f'"{text}"'


def _binding(statement: Any, location: Location) -> Binding:
    scope, name, parameter, value, _ = statement
    # gin reads `NAME = 1` and `NAME/macro.value = 1` as the same macro.
    if name in _MACRO_NAMES and parameter == "value":
        scope, name, parameter = "", scope, ""
    # A macro's name may hold slashes, which the parser takes for a scope.
    if not parameter and scope:
        scope, name = "", f"{scope}/{name}"
    return Binding(scope, name, parameter, value, location)


def _check_import(module: str, location: Location) -> None:
    # With dynamic registration a command-line binding cannot refer to what no file has
    # imported, and it would hold in one file and not in the next.
    if module.split(".")[0] == "__gin__":
        raise ConfigError(
            f"{location}\nDynamic registration is not supported: mark the function "
            "with @gin.configurable, import its module, and refer to it by its name."
        )
    if module.split(".")[:2] in (["gin", "tf"], ["gin", "torch"]):
        raise ConfigError(
            f"{location}\n{module} needs tf.estimator, which is gone. Delete the line: "
            "Keras' optimizers, schedules, losses and metrics are known already."
        )


def _at(location: Location, fn: Any, *args: Any) -> Any:
    """Calls `fn`; a ConfigError that it raises also names `location`."""
    try:
        return fn(*args)
    except ConfigError as error:
        raise ConfigError(f"{location}\n{error}") from error


class _Delegate:
    """Makes the values that gin's parser leaves to its caller: references, macros."""

    def configurable_reference(
        self, scoped_selector: str, evaluate: bool
    ) -> Reference | Macro:
        scope, _, name = scoped_selector.rpartition("/")
        if name in _MACRO_NAMES and evaluate:
            return Macro(scope)
        return Reference(scope, name, evaluate)

    def macro(self, name: str) -> Macro:
        return Macro(name)
