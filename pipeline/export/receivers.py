"""What a server is sent, and how it becomes features.

A serving_input_receiver_fn says it: that of the call, else that of a module, which has
it as an attribute; else the features of an input are sent as they are.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from pipeline.export.sent_names import sent_names
from pipeline.mistakes import habits, user_errors
from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError, RefusedValueError

DEFAULT_SIGNATURE = "serving_default"
# Name of a bare tensor of features, where a signature needs names.
FEATURES_NAME = "features"
_ATTRIBUTE = "serving_input_receiver_fn"


@habits.receiver
@dataclasses.dataclass(frozen=True)
class ServingInputReceiver:
    """The tensors that a server is sent, and the way to turn them into features.

    Attributes:
      receiver_specs: type spec of each tensor that is sent, by name.
      to_features: takes these tensors by name, and returns model_fn's features.
      alternatives: other tensors that may be sent instead, by the name of the further
        signature that takes them: `{"examples": receiver}` answers as
        `serving_default` does. Of each other signature NAME there is `examples:NAME`.
    """

    receiver_specs: Mapping[str, tf.TypeSpec]
    to_features: Callable[[Mapping[str, tf.Tensor]], Any]
    alternatives: Mapping[str, "ServingInputReceiver"] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        """Checks the names and the alternatives.

        Raises:
          TypeError: they are no ServingInputReceivers by name; to_features is no
            function, as of tf.estimator's (features, receiver_tensors).
          ValueError: a signature cannot have the name of a tensor; an alternative is
            named as the default signature, or has alternatives.
        """
        if not callable(self.to_features):
            raise RefusedTypeError(
                "ServingInputReceiver.to_features is of type "
                f"{type(self.to_features).__name__} and no function: write what is "
                "sent, and the way from there to features, ServingInputReceiver({'x': "
                "tf.TensorSpec([None, 4])}, lambda sent: {'x': sent['x'] / 255})."
            )
        for name, sent in sent_names(self.receiver_specs).items():
            if name != sent:
                raise RefusedValueError(
                    f"ServingInputReceiver.receiver_specs has the name {name!r}, which "
                    f"no signature of a SavedModel can have: write {sent!r} there and "
                    "in to_features."
                )
        if not isinstance(self.alternatives, Mapping) or not all(
            isinstance(name, str) and isinstance(each, ServingInputReceiver)
            for name, each in self.alternatives.items()
        ):
            raise RefusedTypeError(
                f"ServingInputReceiver.alternatives is {kind_of(self.alternatives)}: "
                "write ServingInputReceivers by name, alternatives={'examples': "
                "build_parsing_serving_input_receiver_fn(feature_spec)()}."
            )
        for name, each in self.alternatives.items():
            if not name or name == DEFAULT_SIGNATURE:
                raise RefusedValueError(
                    f"ServingInputReceiver.alternatives has the name {name!r}, which "
                    "is that of the receiver itself: write another one, such as "
                    "'examples'."
                )
            if each.alternatives:
                raise RefusedValueError(
                    f"the alternative {name!r} of a ServingInputReceiver has "
                    f"alternatives itself, {sorted(each.alternatives)}: write them "
                    "beside it, in one dict."
                )


ServingFn = Callable[[], ServingInputReceiver]


def build_raw_serving_input_receiver_fn(features: Any) -> ServingFn:
    """Describes a server that is sent features as they are: a tensor, or a dict.

    Args:
      features: type spec of one tensor, or dict of specs. The first dimension, the
        batch, becomes any size. A bare tensor is sent under the name `features`. Of
        tuples, and of dicts in dicts, each tensor is sent under the names on the way
        to it, `image_left`, `features_0`. A name that Python gives no argument is
        changed, `dep time` to `dep_time`, `class` to `class_`.

    Returns:
      A serving_input_receiver_fn.

    Raises:
      ValueError: features are None, as those of an Estimator that has seen no input; or
        two tensors of dicts in dicts would be sent under one name.
    """
    if features is None:
        raise RefusedValueError(
            "what a server sends is not known, as no input was seen yet: give "
            "serving_input_receiver_fn="
            "build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 28, 28]))."
        )
    if _is_nested(features):
        return _nested(features)
    bare = not isinstance(features, Mapping)
    named = {FEATURES_NAME: features} if bare else dict(features)

    def to_features(received: Mapping[str, tf.Tensor]) -> Any:
        return received[FEATURES_NAME] if bare else dict(received)

    return _sent(named, to_features)


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], *, bare: bool = False
) -> ServingFn:
    """Describes a server that is sent serialized `tf.train.Example`s, as `examples`.

    Args:
      feature_spec: how to parse each feature, `{name: tf.io.FixedLenFeature(...)}`.
      bare: whether model_fn gets the only feature as a tensor, rather than in a dict.

    Returns:
      A serving_input_receiver_fn.

    Raises:
      ValueError: `bare` is given with several features.
    """
    if bare and len(feature_spec) != 1:
        raise RefusedValueError(
            f"bare=True takes one feature, not {sorted(feature_spec)}: leave it out."
        )
    specs = {"examples": tf.TensorSpec([None], tf.string, "examples")}

    def serving_input_receiver_fn() -> ServingInputReceiver:
        def to_features(received: Mapping[str, tf.Tensor]) -> Any:
            parsed = tf.io.parse_example(received["examples"], dict(feature_spec))
            return next(iter(parsed.values())) if bare else parsed

        return ServingInputReceiver(specs, to_features)

    return serving_input_receiver_fn


def receiver_of(
    serving_fn: ServingFn | None,
    modules: Mapping[str, Any],
    features_spec: Callable[[], Any],
) -> ServingInputReceiver:
    """Calls the serving_input_receiver_fn of the call, of a module, or of the features.

    Args:
      serving_fn: function of the call; None where it gives none.
      modules: modules by name, which may have a function as an attribute.
      features_spec: returns type specs of the features, None where no input was seen;
        called where neither has one.

    Raises:
      TypeError: it is no function, or returns no `ServingInputReceiver`.
      ValueError: there is none, or several modules have one.
    """
    where = f"the {_ATTRIBUTE}"
    if serving_fn is None and (owner := _owner(modules)) is not None:
        serving_fn = getattr(modules[owner], _ATTRIBUTE)
        where = f"{owner}.{_ATTRIBUTE}"
        logging.info("export | a server is sent what %s says", where)
    if serving_fn is None:
        serving_fn = build_raw_serving_input_receiver_fn(features_spec())
    if not callable(serving_fn):
        raise RefusedTypeError(
            f"{where.removeprefix('the ')} is {kind_of(serving_fn)} and no function: "
            "write build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 28, 28]))."
        )
    receiver = user_errors.call(lambda: where, serving_fn)
    if not isinstance(receiver, ServingInputReceiver):
        raise RefusedTypeError(
            f"{where.removeprefix('the ')} is {kind_of(serving_fn)} and gives "
            f"{kind_of(receiver)}, not a ServingInputReceiver: write "
            "build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 28, 28]))."
        )
    return receiver


def _owner(modules: Mapping[str, Any]) -> str | None:
    """Returns the name of the module that says what a server is sent, or None."""
    found = {name: getattr(each, _ATTRIBUTE, None) for name, each in modules.items()}
    found = {name: fn for name, fn in found.items() if fn is not None}
    first = next(iter(found), None)
    # Two networks of one schema say the same.
    if any(fn != found[first] for fn in found.values()):
        raise RefusedValueError(
            f"the modules {sorted(found)} each say what a server is sent, and not the "
            f"same: write which counts, BestExporter({_ATTRIBUTE}=...), "
            f"ExportSpec.{_ATTRIBUTE} = ..."
        )
    return first


def _is_nested(features: Any) -> bool:
    """Returns whether specs lie in tuples, or in dicts in a dict."""
    leaves = keras.tree.flatten(features)
    values = features.values() if isinstance(features, Mapping) else [features]
    # A list of numbers is an example of a tensor.
    return bool(leaves) and (
        any(isinstance(value, (Mapping, tuple, list)) for value in values)
        and all(isinstance(leaf, tf.TypeSpec) for leaf in leaves)
    )


def _nested(features: Any) -> ServingFn:
    """Describes a server that is sent each tensor of a nest by a name of its own."""
    named: dict[str, Any] = {}
    for path, spec in keras.tree.flatten_with_path(features):
        way = path if isinstance(features, Mapping) else (FEATURES_NAME, *path)
        name = "_".join(map(str, way))
        if name in named:
            raise RefusedValueError(
                f"two of the features would be sent as {name!r}: give one another key, "
                "or write a serving_input_receiver_fn of your own."
            )
        named[name] = spec

    def to_features(received: Mapping[str, tf.Tensor]) -> Any:
        return keras.tree.pack_sequence_as(features, [received[n] for n in named])

    return _sent(named, to_features)


def _sent(named: Mapping[str, Any], to_features: Callable[..., Any]) -> ServingFn:
    """Describes a server that is sent tensors under names that a signature can have.

    Args:
      named: specs of the tensors by their own names.
      to_features: takes the tensors by their own names.
    """
    names = sent_names(named)
    specs = {names[own]: _any_batch(names[own], named[own]) for own in named}

    def to_own(received: Mapping[str, tf.Tensor]) -> Any:
        return to_features({own: received[sent] for own, sent in names.items()})

    def serving_input_receiver_fn() -> ServingInputReceiver:
        return ServingInputReceiver(specs, to_own)

    return serving_input_receiver_fn


def _any_batch(name: str, spec: Any) -> tf.TypeSpec:
    """Returns the named spec of any number of examples."""
    if not isinstance(spec, tf.TensorSpec):
        if isinstance(spec, tf.TypeSpec):
            return spec
        spec = tf.TensorSpec.from_tensor(tf.convert_to_tensor(spec))
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, name)
