# SPDX-License-Identifier: Apache-2.0
"""Describes the tensors that a server sends, and how features are made from them."""

import dataclasses
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from ..contract import signatures
from ..contract.checks import check
from ..contract.user_errors import annotate_errors
from ..errors import UserTypeError, UserValueError
from ..loop.exporter import SERVING_FN

FEATURES = "features"
SERVING_DEFAULT = "serving_default"
_ATTRIBUTE = "serving_input_receiver_fn"
_EXAMPLE = SERVING_FN.example


@dataclasses.dataclass(frozen=True)
class ServingInputReceiver:
    """The arguments of a signature.

        ServingInputReceiver(
            {"x": tf.TensorSpec([None, 4])}, lambda sent: {"x": sent["x"] / 255.0}
        )

    Attributes:
      receiver_specs: specs of the tensors that a server sends, by name; the batch
        dimension is None.
      to_features: function of these tensors, by name, that returns model_fn's features.
      alternatives: other receivers by signature: `{"examples": receiver}` is answered as
        `serving_default` is; of each other signature NAME there is `examples:NAME`.
    """

    receiver_specs: Mapping[str, tf.TypeSpec]
    to_features: Callable[[Mapping[str, tf.Tensor]], Any]
    alternatives: Mapping[str, "ServingInputReceiver"] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.to_features):
            kind = type(self.to_features).__name__
            raise UserTypeError(
                f"ServingInputReceiver.to_features is a {kind}: expected a function. Write "
                "ServingInputReceiver({'x': tf.TensorSpec([None, 4])}, lambda sent: {'x': "
                "sent['x'] / 255.0})."
            )
        for name in self.receiver_specs:
            if name != _sent_name(name):
                raise UserValueError(
                    f"ServingInputReceiver.receiver_specs has the name {name!r}: expected the "
                    f"name of a Python argument. Set {_sent_name(name)!r}."
                )
        for name, each in self.alternatives.items():
            if not isinstance(each, ServingInputReceiver) or each.alternatives:
                raise UserTypeError(
                    f"ServingInputReceiver.alternatives[{name!r}] is {each!r}: expected a "
                    "ServingInputReceiver without alternatives."
                )


ServingFn = Callable[[], ServingInputReceiver]


def build_raw_serving_input_receiver_fn(features: Any) -> ServingFn:
    """Returns a function that describes features that are sent as they are.

    A tensor is sent as `features`, the entries of a dict by their keys. Tensors in nested dicts
    and tuples have joined names, `image_left` or `features_0`. Characters that a Python argument
    cannot have are replaced: `dep time` by `dep_time`, `class` by `class_`.

    Args:
      features: spec of a tensor, or nest of specs. Batch sizes in them are ignored.

    Raises:
      UserValueError: a feature is not a tensor, or two of them would have one name.
    """
    specs: dict[str, tf.TypeSpec] = {}

    def add(value: Any, path: tuple[str, ...]) -> Any:
        """Returns the nest with each tensor replaced by its name."""
        if isinstance(value, Mapping):
            return {key: add(each, (*path, str(key))) for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            path = path or (FEATURES,)
            items = [add(each, (*path, str(i))) for i, each in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        name = _sent_name("_".join(path) or FEATURES)
        if name in specs:
            raise UserValueError(
                f"two features would be sent as {name!r}: expected different names. Set "
                f"{_ATTRIBUTE} to describe what is sent."
            )
        specs[name] = _any_batch(value, name)
        return name

    names = add(features, ())

    def to_features(sent: Mapping[str, tf.Tensor]) -> Any:
        return tf.nest.map_structure(lambda name: sent[name], names)

    receiver = ServingInputReceiver(specs, to_features)
    return lambda: receiver


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], *, bare: bool = False
) -> ServingFn:
    """Returns a function that describes serialized tf.Examples, sent as `examples` `[batch]`.

    Args:
      feature_spec: `tf.io` features by name, as in `tf.io.parse_example`.
      bare: whether model_fn gets the only feature itself instead of a dict.

    Raises:
      UserValueError: `bare` is True, and there are several features.
    """
    if bare and len(feature_spec) != 1:
        raise UserValueError(
            f"bare is True, and the features are {sorted(feature_spec)}: expected one feature. "
            "Set bare=False."
        )

    def to_features(sent: Mapping[str, tf.Tensor]) -> Any:
        features = tf.io.parse_example(sent["examples"], dict(feature_spec))
        return next(iter(features.values())) if bare else features

    receiver = ServingInputReceiver({"examples": tf.TensorSpec([None], tf.string)}, to_features)
    return lambda: receiver


def receiver_of(
    serving_fn: ServingFn | None, modules: Iterable[Any], features_spec: Any
) -> ServingInputReceiver:
    """Returns the receiver of a function, of a module, or of the features.

    Args:
      serving_fn: function of the call; None for the attribute `serving_input_receiver_fn` of a
        module, or else for features that are sent as they are.
      modules: modules of the model.
      features_spec: specs of the features; None if no input has been read.

    Raises:
      UserValueError: no features are known, or modules disagree.
      UserTypeError: it is not a function that returns a ServingInputReceiver.
    """
    if serving_fn is None:
        found = [getattr(module, _ATTRIBUTE, None) for module in modules]
        found = [each for each in found if each is not None]
        if any(each != found[0] for each in found):
            raise UserValueError(
                f"several modules have different attributes {_ATTRIBUTE}: expected one. Set "
                f"{_ATTRIBUTE} of the call, of the exporter, or ExportSpec.{_ATTRIBUTE}."
            )
        serving_fn = found[0] if found else None
    if serving_fn is None:
        if features_spec is None:
            raise UserValueError(
                f"{_ATTRIBUTE} is None and no input was read before: set input_fn, or "
                f"{_ATTRIBUTE}={_EXAMPLE}."
            )
        serving_fn = build_raw_serving_input_receiver_fn(features_spec)
    check(_ATTRIBUTE, serving_fn, SERVING_FN)
    with annotate_errors(f"{_ATTRIBUTE} {signatures.name_of(serving_fn)}"):
        receiver = serving_fn()
    if not isinstance(receiver, ServingInputReceiver):
        raise UserTypeError(
            f"{_ATTRIBUTE} returned {receiver!r}: expected a ServingInputReceiver. Set it to "
            f"{_EXAMPLE}."
        )
    return receiver


def _sent_name(name: str) -> str:
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not re.match("[A-Za-z]", name):
        return f"arg_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _any_batch(spec: Any, name: str) -> tf.TypeSpec:
    if isinstance(spec, tf.RaggedTensorSpec):
        shape = [None, *spec.shape[1:]]
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec([None, *spec.shape[1:]], spec.dtype)
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, name)
    raise UserValueError(
        f"the feature {name!r} is {spec!r}: expected the spec of a tensor, as in {_EXAMPLE}."
    )
