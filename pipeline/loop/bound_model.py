# SPDX-License-Identifier: Apache-2.0
"""A model_fn on the variables of a run, and the programs that were compiled for it."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import tensorflow as tf

from ..contract import seeds, signatures
from ..contract.checks import repr_short
from ..contract.spec import EstimatorSpec, ModeKeys
from ..contract.user_errors import annotate_errors, describe
from ..distribute import modules as modules_lib
from ..distribute import names
from ..errors import SpecError, UserTypeError
from ..train.step import BoundModelFn
from .train_state import TrainState

Program = TypeVar("Program")

_MAX_PROGRAMS = 24  # Eight for each mode.


class BoundModel:
    """A model_fn with the modules of a TrainState as arguments.

    Attributes:
      state: the variables.
      model_fn: function that returns an EstimatorSpec.
      params: hyperparameters.
    """

    def __init__(self, model_fn: Callable[..., Any], state: TrainState, params: Any = None) -> None:
        """Takes the parts; nothing is traced yet."""
        self.state, self.model_fn, self.params = state, model_fn, params
        # Type specs of the features and labels that model_fn was built for, by mode, and the
        # types that it worked on first.
        self._element_specs: dict[str, Any] = {}
        self._worked_on: dict[str, Any] = {}
        self._programs: dict[Hashable, Any] = {}

    @property
    def features_spec(self) -> Any:
        """Type specs of features to serve: of PREDICT, EVAL or TRAIN; None if none was built."""
        modes = ModeKeys.PREDICT, ModeKeys.EVAL, ModeKeys.TRAIN
        found = [self._element_specs[mode][0] for mode in modes if mode in self._element_specs]
        return found[0] if found else None

    def in_mode(self, mode: str) -> BoundModelFn:
        """Returns model_fn in one mode as a function of features, labels and step."""
        model_fn, state = self.model_fn, self.state
        name = f"model_fn {signatures.name_of(model_fn)}"
        takes_labels = signatures.accepts(model_fn, "labels") or signatures.takes_all(model_fn)

        def bound(features: Any, labels: Any, step: tf.Tensor) -> EstimatorSpec:
            if labels is not None and mode != ModeKeys.PREDICT and not takes_labels:
                raise UserTypeError(
                    f"{name} does not take labels, and input_fn yields {describe(labels)} in mode "
                    f"{mode!r}: expected an argument `labels`, or a dataset of features alone."
                )
            available = {
                "features": _copied(features),
                "labels": _copied(labels),
                "mode": mode,
                "params": signatures.own(self.params),
                "config": state.config,
                "step": step,
                **state.modules,
            }
            others = {m: data for m, data in self._worked_on.items() if m != mode}
            for other, (there, _) in others.items():
                _check_features(mode, features, other, there)
            details = {"mode": mode, "features": features, "labels": labels}
            details |= {f"worked in mode {m!r} on": data for m, data in others.items()}
            seeds.seed_graph(state.config.tf_random_seed)
            normalization = modules_lib.current_normalization(state.modules)
            with annotate_errors(name, **details), normalization:
                spec = model_fn(**signatures.arguments(model_fn, available, role="model_fn"))
            if not isinstance(spec, EstimatorSpec) or spec.mode != mode:
                is_spec = isinstance(spec, EstimatorSpec)
                returned = f"EstimatorSpec({spec.mode!r}, ...)" if is_spec else repr_short(spec)
                raise SpecError(
                    f"{name} returned {returned} in mode {mode!r}: expected an EstimatorSpec of "
                    "this mode. Write return EstimatorSpec(mode, ...)."
                )
            self._worked_on.setdefault(mode, tf.nest.map_structure(_type, (features, labels)))
            return spec

        return bound

    def build(self, mode: str, element_spec: Any) -> EstimatorSpec:
        """Creates the variables that model_fn uses in a mode; see `modules.build`.

        Args:
          mode: a mode.
          element_spec: type specs of one replica's features and labels.

        Returns:
          The spec of the trace.

        Raises:
          SpecError: training runs, and no checkpoint of it would have the new variables.
        """
        self._element_specs[mode] = element_spec
        return self.build_by(self.in_mode(mode), element_spec)

    def build_by(self, model_fn: BoundModelFn, element_spec: Any) -> EstimatorSpec:
        """Creates the variables that a function uses, which calls a result of `in_mode`."""
        state = self.state
        before = set(state.variables()) if state.is_training else set()
        with seeds.seeded(state.config.tf_random_seed, "build"):
            spec = modules_lib.build(state.modules, state.replicas.strategy, model_fn, element_spec)
        if state.averages is not None:
            state.averages.build(names.variables_of(state.networks), spec.train_op)
        added = sorted(set(state.variables()) - before) if state.is_training else []
        if added:
            raise SpecError(
                f"model_fn created {added} during a training, whose checkpoints would not have "
                "them: expected the same layers in each mode. Call them in mode 'train' as well."
            )
        return spec

    def program(self, key: Hashable, make: Callable[[], Program]) -> Program:
        """Returns what `make` compiles, kept for later calls with an equal key.

        The key has all that it depends on, except for model_fn, the modules and the RunConfig. The
        programs used last are kept.
        """
        program = self._programs.pop(key) if key in self._programs else make()
        self._programs[key] = program
        if len(self._programs) > _MAX_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return program


def _type(leaf: Any) -> Any:
    return None if leaf is None else tf.type_spec_from_value(leaf)


def _check_features(mode: str, features: Any, other: str, there: Any) -> None:
    """Refuses features that differ from those of another mode.

    Dicts may have other keys, such as weights in TRAIN alone.
    """
    if isinstance(features, tuple) != isinstance(there, tuple):
        raise UserTypeError(
            f"input_fn yields the features {describe(features)} in mode {mode!r}, and "
            f"{describe(there)} in mode {other!r}: expected one structure. A pair is features and "
            "labels: for features (a, b) without labels, set each element to ((a, b), None)."
        )
    if ModeKeys.PREDICT in (mode, other):
        return
    for here, leaf in zip(tf.nest.flatten(features), tf.nest.flatten(there), strict=False):
        if here.dtype != leaf.dtype:
            raise UserTypeError(
                f"input_fn yields features of {here.dtype.name} in mode {mode!r}, and of "
                f"{leaf.dtype.name} in mode {other!r}: expected one dtype. Set "
                f"tf.cast(x, tf.{leaf.dtype.name})."
            )


def _copied(nest: Any) -> Any:
    """Returns new containers of the same tensors, so that model_fn may change its own."""
    return tf.nest.map_structure(lambda leaf: leaf, nest)
