"""Makes a feature of a dict with its kind, or of the kind alone."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline import RefusedValueError
from pipeline.process.refusals import near

from .checks import check_choice
from .features import Bag, Category, Cross, Feature, Number

_CLASSES: dict[str, type[Feature]] = {
    "number": Number,
    "word": Category,
    "id": Category,
    "bag of words": Bag,
    "bag of ids": Bag,
    "cross": Cross,
}


def feature_of(name: str, value: Any) -> Feature:
    """Returns one feature of a declaration.

    Args:
      name: name of the feature, for messages.
      value: a feature, a dict with its kind and arguments, or its kind.

    Raises:
      ValueError: it is something else, or an argument is refused.
    """
    if isinstance(value, Feature):
        return value
    arguments = {"kind": value} if isinstance(value, str) else value
    if not isinstance(arguments, Mapping) or "kind" not in arguments:
        raise RefusedValueError(
            f"Feature {name!r} is {value!r}: write its kind, one of "
            f"{sorted(_CLASSES)}, or a dict, {{'kind': 'word', 'embedding': 16}}."
        )
    kind = arguments["kind"]
    try:
        check_choice("kind", kind, sorted(_CLASSES))
        _check_arguments(_CLASSES[kind], kind, arguments)
        return _CLASSES[kind](**arguments)
    except ValueError as error:
        raise RefusedValueError(f"Feature {name!r}: {error}") from error


def _check_arguments(
    cls: type[Feature], kind: str, arguments: Mapping[str, Any]
) -> None:
    """Raises for arguments that a class has not, or lacks."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for argument in arguments:
        if argument not in fields:
            raise RefusedValueError(
                f"{argument} is no argument of kind {kind!r}: write some of "
                f"{sorted(fields)}.{near(str(argument), list(fields))}"
            )
    for field in fields.values():
        is_needed = field.default is dataclasses.MISSING
        if is_needed and field.name not in arguments:
            raise RefusedValueError(
                f"{field.name} is not given: write {{'kind': {kind!r}, "
                f"{field.name!r}: ...}}."
            )
