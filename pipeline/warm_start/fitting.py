"""Finds for each variable of a model the value that a checkpoint has for it."""

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.checkpoints import checkpoint, foreign_checkpoint
from pipeline.checkpoints.checkpoint import CheckpointMismatchError
from pipeline.contract.averages import AVERAGE
from pipeline.foreign import sources
from pipeline.foreign.keras_file import KerasFile
from pipeline.foreign.slot_names import SlotNames
from pipeline.process.refusals import RefusedValueError, near
from pipeline.strategy import sharding, variables
from pipeline.warm_start import names, origins, proposals, slots
from pipeline.warm_start.origins import Origin
from pipeline.warm_start.warm_start_settings import WarmStartSettings, is_count, is_seed

_NO_RATE = "as configured: the checkpoint has none"
_NO_TABLE = "a lookup table, which no other program's checkpoint has"
_NO_AVERAGE = "has no average"
_NO_STREAM = "a random stream: the checkpoint has none"


class Fit:
    """What a checkpoint has for the variables of a model.

    Attributes:
      origins: by name here, where the value of each chosen variable comes from; what is
        not in the checkpoint has a name that is not there, or none.
      reasons: by name here, why a variable is left as it is.
    """

    def __init__(
        self,
        settings: WarmStartSettings,
        source: sources.Source,
        own: Mapping[str, Any],
        modules: Mapping[str, Any],
    ) -> None:
        """Finds the names; reads few values, and sets none.

        Args:
          settings: what is chosen.
          source: the checkpoint or file.
          own: variables and tables of the model, by name.
          modules: modules by name.
        """
        self._settings, self._source = settings, source
        self._own, self._modules = own, modules
        self._is_foreign = sources.is_foreign(source)
        self._prefixes = variables.optimizer_prefixes(modules)
        self.reasons = {
            name: reason
            for name, value in own.items()
            if (reason := self._left_out(name, value)) is not None
        }
        self._chosen = [name for name in own if name not in self.reasons]
        found = self._of_another() if self._is_foreign else self._of_ours()
        self.origins = {n: found[n] for n in self._chosen if n in found}

    def check_chosen(self, unbuilt: Sequence[str]) -> None:
        """Checks that the settings choose something, by names that the model has.

        Args:
          unbuilt: name prefixes below which names may come to be, in another mode.

        Raises:
          ValueError: they do not; says what to write.
        """
        idle = self._settings.idle_names(self._own)
        idle = [n for n in idle if not n.startswith(tuple(unbuilt))]
        if idle:
            field = "var_name_to_prev_var_name"
            if idle[0] in self._settings.var_name_to_vocab_info:
                field = "var_name_to_vocab_info"
            raise RefusedValueError(
                f"{field} names {idle}, which the model does not have:"
                f"{near(idle[0], list(self._own))} write names out of "
                f"{sorted(self._own)}."
            )
        self._check_mapped("var_name_to_vocab_info")
        if not (self._chosen or unbuilt):
            raise RefusedValueError(
                f"vars_to_warm_start={self._settings.vars_to_warm_start!r} chooses no "
                "variable: write an expression that matches some of "
                f"{sorted(self._own)} in full."
            )
        if not unbuilt:
            self._check_idle()

    def _check_mapped(self, field: str) -> None:
        """Checks that names are chosen of which a mapping says where they come from."""
        for name in getattr(self._settings, field):
            if name in self.reasons:
                raise RefusedValueError(
                    f"{field} names {name!r}, which is {self.reasons[name]}: choose "
                    "it there, or leave it out here."
                )

    def _check_idle(self) -> None:
        """Checks, where all is built, that each part of the choice stands for a part.

        Raises:
          ValueError: one does not; says what to write.
        """
        self._check_mapped("var_name_to_prev_var_name")
        unused = self._settings.idle_patterns(self._own)
        if unused:
            raise RefusedValueError(
                f"vars_to_warm_start has {unused[0]!r}, which matches no variable in "
                f"full:{near(unused[0], list(self._own))} write an expression for "
                f"some of {sorted(self._own)}, or leave it out."
            )

    def spare(self) -> dict[str, str]:
        """Returns the shapes of another program's weights that stand for nothing here.

        They are by name, and for the log: a smaller model takes a part in silence.
        """
        if not self._is_foreign:
            return {}
        weights = self._slot_names.weights(self._source.shapes)
        return {
            name: str(list(shape))
            for name, shape in weights.items()
            if shape and name not in self._used and "seed_generator" not in name
        }

    def taken(self, fresh: Collection[str]) -> dict[str, Origin]:
        """Returns where the values of some variables come from, checked.

        Args:
          fresh: names of the variables that are to be set now.

        Raises:
          CheckpointMismatchError: lists what is missing, and says how to take the rest.
        """
        saved = {**self._source.shapes, **dict.fromkeys(self._source.tables)}
        wanted = [name for name in self._chosen if name in fresh]
        lacking = [n for n in wanted if self._name_there(n) not in saved]
        reshaped = [
            f"{n}: {shape} in the model, {saved[there]} saved"
            for n in wanted
            if (there := self._name_there(n)) in saved
            and n not in self._vocabularies
            and not self._fits(n, shape := _shape(self._own[n]), _listed(saved[there]))
        ]
        if lacking or reshaped:
            unfit = {*lacking, *(line.partition(": ")[0] for line in reshaped)}
            raise CheckpointMismatchError(self._problem(lacking, reshaped, unfit))
        return {n: self._moved(n, self.origins[n]) for n in wanted}

    def _fits(self, name: str, here: list[int] | None, there: list[int] | None) -> bool:
        """Whether shapes are equal, or cut alike where the user has given the name."""
        if here == there or here is None or there is None:
            return here == there
        given = self._mapped(name) or self._mapped(self._reference(name) or name)
        return given is not None and origins.is_cut(here, there)

    def _reference(self, name: str) -> str | None:
        """Returns the name of the variable that a slot belongs to; None for others."""
        prefix = self._prefix_of(name)
        return prefix and name.removeprefix(prefix).partition("/")[2]

    def _name_there(self, name: str) -> str | None:
        origin = self.origins.get(name)
        return None if origin is None else origin.name

    def _left_out(self, name: str, value: Any) -> str | None:
        reason = self._settings.left_out(name, value, self._prefix_of(name))
        if reason is None and self._is_foreign and not variables.is_variable(value):
            return _NO_TABLE
        return reason

    def _prefix_of(self, name: str) -> str | None:
        return next((p for p in self._prefixes if name.startswith(p)), None)

    def _mapped(self, name: str) -> str | None:
        return self._settings.mapped(name, self._own)

    def _of_ours(self) -> dict[str, Origin]:
        found = names.own_names(self._chosen, self._mapped)
        return {n: Origin(t) for n, t in self._averaged(found).items()}

    def _averaged(self, found: dict[str, str]) -> dict[str, str]:
        """Returns names in the checkpoint, of averages where these are asked for."""
        if self._settings.weights != AVERAGE:
            return found
        if not names.holds_averages(self._source.shapes):
            raise RefusedValueError(
                f"WarmStartSettings.weights is 'average', and {self._source.path} "
                "holds none: it was trained without RunConfig(average=...). Write "
                "weights='live'."
            )
        return names.of_averages(found, self._source.shapes)

    def _of_another(self) -> dict[str, Origin]:
        mine = [n for n in self._chosen if self._prefix_of(n) is not None]
        moved = {n.partition("/")[2].partition("/")[2] for n in mine}
        weights = [
            n
            for n in self._own
            if self._prefix_of(n) is None and (n not in self.reasons or n in moved)
        ]
        places: dict[str, str] = {}
        if isinstance(self._source, KerasFile):
            places = self._source.places(self._modules, list(self._own))
        there = names.foreign_names(
            weights,
            self._mapped,
            self._source,
            places=places,
            weights=self._slot_names.weights(self._source.shapes),
        )
        self._used = {*there.values()}
        averages = self._settings.weights == AVERAGE
        found = {
            n: Origin(t, _NO_AVERAGE if averages and t == there[n] else "")
            for n, t in self._averaged(there).items()
        }
        named = {*self._settings.patterns, *self._settings.var_name_to_prev_var_name}
        for name in weights:
            # An expression of many names may give one to a stream, too.
            is_there = there.get(name) in self._source.shapes
            if is_seed(name) and not is_there and name not in named:
                self.reasons.setdefault(name, _NO_STREAM)
        for name in mine:
            origin = self._of_optimizer(name, there, places)
            if origin is not None:
                found[name] = origin
            elif variables.is_rate(name, self._own) and name not in (
                self._settings.patterns
            ):
                self.reasons[name] = _NO_RATE
        self._chosen = [n for n in self._chosen if n not in self.reasons]
        return found

    def _of_optimizer(
        self, name: str, weights: Mapping[str, str], places: Mapping[str, str]
    ) -> Origin | None:
        prefix = self._prefix_of(name)
        optimizer = self._modules[prefix.rstrip("/")]
        known = self._slot_names
        state = slots.Slots(self._source, known, prefix, optimizer, weights)
        if (given := self._mapped(name)) is not None:
            there = self._source.name_of(given)
            counts = name == f"{prefix}iteration"
            return state.count(there) if counts else Origin(there)
        if name in places:
            return Origin(places[name]) if places[name] in self._source.shapes else None
        if not is_count(name, self._own[name], prefix):
            return state.slot(name)
        if variables.is_rate(name, self._own):
            return state.rate()
        return state.iteration() if name == f"{prefix}iteration" else None

    @functools.cached_property
    def _slot_names(self) -> SlotNames:
        return SlotNames(self._source.shapes)

    @functools.cached_property
    def _vocabularies(self) -> dict[str, Any]:
        """The `VocabInfo`s of tables, and of the slots that go with them, by name."""
        infos = self._settings.var_name_to_vocab_info
        found = {n: info for n, info in infos.items() if n in self._own}
        for name in self._own:
            if (reference := self._reference(name)) in found:
                found[name] = found[reference]
        return found

    def _moved(self, name: str, origin: Origin) -> Origin:
        """Returns an origin that makes the shape of here, by words or by split axes."""
        info, variable = self._vocabularies.get(name), self._own[name]
        shape, there = _shape(variable), self._source.shapes.get(origin.name)
        if info is None:
            same = shape is None or there is None or shape == _listed(there)
            return origin if same else origins.with_shape(origin, there, shape)
        rows, words = info.moved(there, shape, name)
        if self._prefix_of(name) is None:
            backup = info.backup(name, shape, variable.dtype)
        else:  # A new word's slot begins as the optimizer has it.
            backup = sharding.value_of(variable)
        made = origin.convert or (lambda value: value)
        return Origin(
            origin.name,
            words,
            lambda value: info.remapped(np.asarray(made(value)), rows, backup),
        )

    def _problem(self, lacking: list[str], reshaped: list[str], unfit: set[str]) -> str:
        source, chosen = self._source, self._chosen
        given_path = self._settings.ckpt_to_initialize_from
        if not self._is_foreign:
            absent = sorted(self._name_there(name) for name in lacking)
            held = sorted({*source.shapes, *source.tables})
            held = [n for n in held if not n.startswith(checkpoint.CONFIGURED)]
            return (
                f"cannot start warm from {source.path}: "
                f"{_unlike('it lacks', absent, reshaped)}. It holds {held}. "
                f"{_other_choice(self._settings, chosen, unfit)}"
            )
        given = {self._name_there(name) for name in lacking} - {None}
        typed = f" It has none of the names {sorted(given)}." if given else ""
        # A weight there is no slot's value, whatever its shape.
        unfit_weights = (name for name in unfit if not self._reference(name))
        wanted = {name: _shape(self._own[name]) for name in unfit_weights}
        wanted = {n: wanted[n] for n in self._own if wanted.get(n) is not None}
        taken = {self._name_there(name): name for name in chosen if name not in unfit}
        free = self._slot_names.weights(source.shapes)
        free = {name: shape for name, shape in free.items() if name not in taken}
        found = proposals.proposed(wanted, free)
        typed += names.claimed_in_words(lacking, taken)
        return (
            f"cannot start warm from {source.path}: "
            f"{_unlike('no name there is one of', lacking, reshaped)}.{typed}\n"
            f"{foreign_checkpoint.described(given_path)}\n"
            f"{proposals.in_words(wanted, free, found)}\n"
            f"{_other_choice(self._settings, chosen, unfit)}"
        )


def _unlike(lacks: str, absent: list[str], reshaped: list[str]) -> str:
    said = {lacks: absent, "of another shape are": reshaped}
    return "; ".join(f"{words} {names}" for words, names in said.items() if names)


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if hasattr(value, "shape") else None


def _listed(shape: Any) -> list[int] | None:
    return None if shape is None else list(shape)


def _other_choice(
    settings: WarmStartSettings, chosen: Iterable[str], unfit: set[str]
) -> str:
    """Returns the line that takes over all that fits, by as few expressions as do.

    An expression stands for a whole module, else for a layer, else for one name. All
    else that was set stays, but for names of what does not fit.
    """
    expressions = {}
    for name in sorted(set(chosen) - unfit):
        folders = [name[: m.end()] for m in re.finditer("/", name)]
        fitting = (f for f in folders if not any(n.startswith(f) for n in unfit))
        folder = next(fitting, None)
        text = re.escape(name) if folder is None else f"{re.escape(folder)}.*"
        expressions[text] = None
    if not expressions:
        return "Nothing that was chosen fits: leave warm_start_from out."
    given = [
        repr(settings.ckpt_to_initialize_from),
        f"vars_to_warm_start={list(expressions)}",
        *(f"{name}={value}" for name, value in _others(settings, unfit).items()),
    ]
    return f"To take over what fits: WarmStartSettings({', '.join(given)})."


def _others(settings: WarmStartSettings, unfit: set[str]) -> dict[str, str]:
    """Returns what else was set, as Python, without names of what does not fit."""
    found = {}
    for field in dataclasses.fields(settings)[2:]:
        value = getattr(settings, field.name)
        if isinstance(value, Mapping):
            value = {name: each for name, each in value.items() if name not in unfit}
        if value not in ({}, field.default):
            found[field.name] = getattr(value, "__name__", None) or repr(value)
    return found
