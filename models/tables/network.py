"""What all networks of tables share: the schema's fields, and the number of logits."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from pipeline import RefusedValueError, SpecError

from .wide import WidePart


class TableNetwork(keras.Model, abc.ABC):
    """Takes a dict of encoded features, and gives logits `[batch, num_outputs]`.

    Attributes:
      num_outputs: size of the logits' last dimension; None until a head says it.
      fields: fields of the schema, see `inputs.Schema`.
      wide: the wide part; None where there is none.
      has_deep: whether there is another part, for numbers and embeddings.
    """

    wide: WidePart | None = None
    has_deep = True

    def __init__(self, encoder: Any, num_outputs: int | None, name: str) -> None:
        """Describes the network, which is built on its first call.

        Args:
          encoder: what `encoder_of` returned.
          num_outputs: size of the logits' last dimension; None: `size_by` says it.
          name: name of the network.

        Raises:
          ValueError: num_outputs is no positive number.
        """
        # Features are no numbers of the network's dtype: ids, and raw numbers.
        super().__init__(name=name, autocast=False)
        if num_outputs is not None and (
            not isinstance(num_outputs, int) or num_outputs < 1
        ):
            raise RefusedValueError(
                f"{name}.num_outputs is {num_outputs!r}: write a positive number, or "
                "leave it out for what the head needs."
            )
        self.num_outputs = num_outputs
        self._encoder = encoder
        self.fields = tuple(encoder.fields)

    @abc.abstractmethod
    def make(self, fields: Sequence[Any], num_outputs: int) -> None:
        """Makes and builds the parts.

        Args:
          fields: fields of the schema.
          num_outputs: size of the logits' last dimension.
        """

    def size_by(self, head: Any) -> None:
        """Takes the number of logits from a head, where it was not given.

        Args:
          head: one of the heads of `models`.

        Raises:
          SpecError: the head needs another number than was given.
        """
        needed = head.logits_dimension
        if self.num_outputs is None:
            # A head of lists takes one number for each of their items.
            self.num_outputs = 1 if needed is None else needed
        elif needed is not None and needed != self.num_outputs:
            raise SpecError(
                f"{self.name}.num_outputs is {self.num_outputs}, and "
                f"{type(head).__name__} needs {needed} logits: leave num_outputs out."
            )

    def build(self, features_shape: Any = None) -> None:
        """Makes all variables.

        Args:
          features_shape: not looked at: the fields say it all.

        Raises:
          SpecError: num_outputs is not known.
        """
        if self.num_outputs is None:
            raise SpecError(
                f"{self.name}.num_outputs is not given: write {self.name}.num_outputs=1"
                ", or train it by table_model, which asks its head."
            )
        self.make(self.fields, self.num_outputs)
        unused = [field.name for field in self.fields if not self._takes(field)]
        if unused:
            logging.info(
                "%s | as their wide and embedding say, these features enter no part of "
                "it, unless by a cross: %s",
                self.name,
                ", ".join(unused),
            )

    def _takes(self, field: Any) -> bool:
        is_deep = field.kind == "number" or field.embedding is not None
        return (self.wide is not None and field.wide) or (self.has_deep and is_deep)

    @property
    def wide_variables(self) -> list[Any]:
        """The trainable variables of the wide part."""
        return [] if self.wide is None else self.wide.trainable_variables

    @property
    def deep_variables(self) -> list[Any]:
        """All other trainable variables."""
        wide = {id(variable) for variable in self.wide_variables}
        return [v for v in self.trainable_variables if id(v) not in wide]

    @property
    def serving_input_receiver_fn(self) -> Any:
        """The schema's: a server is sent raw columns, or serialized tf.Examples."""
        return self._encoder.serving_input_receiver_fn


def encoder_of(schema: Any, config: Any, name: str) -> Any:
    """Returns the encoder of a schema, with what was counted for it.

    Args:
      schema: an `inputs.Schema`.
      config: the RunConfig, whose model_dir holds what was counted; None for none.
      name: the factory, for messages.

    Raises:
      ValueError: there is no schema, or the config was left out.
    """
    if schema is None or not hasattr(schema, "prepared"):
        raise RefusedValueError(
            f"{name}.schema is {schema!r}: write schema=inputs.Schema(features={{...}}"
            f"), in gin {name}.schema = @Schema()."
        )
    if config is ...:
        raise RefusedValueError(
            f"{name}.config is left out, whose model_dir holds what was counted for "
            f"the schema: write lambda config: {name}(schema=schema, config=config), "
            "or config=None to count anew in this process."
        )
    return schema.prepared(config)


def logits_layer(num_outputs: int, width: int) -> keras.layers.Dense:
    """Returns the last layer, built.

    Args:
      num_outputs: its units, without an activation.
      width: size of its input.
    """
    layer = keras.layers.Dense(num_outputs, name="logits")
    layer.build([None, width])
    return layer


def added(logits: Sequence[Any]) -> tf.Tensor:
    """Returns the sum of the logits of several parts, in float32.

    Args:
      logits: `[batch, num_outputs]` each.
    """
    first, *others = (tf.cast(each, tf.float32) for each in logits)
    return sum(others, first)


Features = Mapping[str, Any]
