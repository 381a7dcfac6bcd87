"""Embeddings: tables of vectors by id, of which a step reads the batch's rows alone."""

import inspect
import operator
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf

from pipeline import RefusedValueError, SpecError
from pipeline.strategy import sharding, variables

from . import bags
from .shard_initializers import of_shard
from .unknown_ids import CHOICES, UnknownIds


def _configurable(layer: type) -> type:
    """Registers a layer with gin, so that Keras can still read its signature."""
    layer = gin.configurable(layer)
    # Keras looks at the arguments of what gin has put in this place.
    layer.__init__.__signature__ = inspect.signature(layer.__init__)
    return layer


@_configurable
@keras.saving.register_keras_serializable("gin_estimator")
class Embedding(keras.layers.Layer):
    """Looks up a vector for each id, or one for each bag of ids.

    It gives what `keras.layers.Embedding` gives, goes on from that one's checkpoints,
    and reads only the rows of the batch, where that one reads its whole table. On
    parameter servers a large table is cut in shards, one on each; a checkpoint holds
    it whole.

        vectors = Embedding(1_000_000, 32)(ids)                       # [..., 32]
        vectors = Embedding(50_000, 16, combiner="mean")(ragged_ids)  # [batch, 16]

    Several inputs share a table, in one gather: `table({"bought": a, "seen": b})`
    returns a dict of vectors. The layer may be called several times as well.

    With vectors v and weights w of the ids of a bag, "sum" is sum(w v), "mean"
    sum(w v) / sum(w), "sqrtn" sum(w v) / sqrt(sum(w^2)); and 0 for an empty bag, or
    where the divisor is 0.

    Attributes:
      num_rows: rows of the table: `input_dim`, and those of unknown ids.
    """

    _weight_name = "embeddings"

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        *,
        combiner: str | None = None,
        oov: str = "error",
        num_oov_buckets: int | None = None,
        **options: Any,
    ) -> None:
        """Describes the table, which is made on the first call, or by `build()`.

        Args:
          input_dim: number of ids, which count from 0.
          output_dim: size of a vector.
          embeddings_initializer: a Keras initializer, or its name.
          embeddings_regularizer: a Keras regularizer, or its name. It reads the whole
            table at each step, and keeps it in one piece; `activity_regularizer=`
            is given the batch's vectors alone.
          embeddings_constraint: a Keras constraint, or its name; it costs as much.
          mask_zero: whether id 0 is padding: masked for the layers behind, as Keras
            does, and left out of bags.
          combiner: 'sum', 'mean' or 'sqrtn', for a vector a bag, which is the last
            dimension of the ids; None for a vector an id. Ids `[batch]` are bags of
            one.
          oov: what an id becomes that is below 0, or `input_dim` or more. 'error' names
            it; 'zero' gives a vector of 0, left out of bags; 'hash' gives one of
            `num_oov_buckets` further rows of the table.
          num_oov_buckets: these rows; None for 1 with oov='hash', else for none.
          **options: of `keras.layers.Layer`: name, dtype, trainable,
            activity_regularizer.

        Raises:
          ValueError: an argument is out of its range.
        """
        # Keras would cast the table; here the vectors are cast.
        super().__init__(**{**options, "autocast": False})
        self.input_dim = self._positive("input_dim", input_dim)
        self.output_dim = self._positive("output_dim", output_dim)
        if combiner is not None and combiner not in bags.COMBINERS:
            raise self._refused("combiner", combiner, f"one of {list(bags.COMBINERS)}")
        if oov not in CHOICES:
            raise self._refused("oov", oov, f"one of {list(CHOICES)}")
        if num_oov_buckets is not None and oov != "hash":
            raise self._refused("num_oov_buckets", num_oov_buckets, "oov='hash', too")
        buckets = 0
        if oov == "hash":
            buckets = 1 if num_oov_buckets is None else num_oov_buckets
            buckets = self._positive("num_oov_buckets", buckets)
        self.combiner = combiner
        self.oov = oov
        self.num_oov_buckets = buckets or None
        self.num_rows = self.input_dim + buckets
        self._unknown = UnknownIds(oov, self.input_dim, buckets)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.mask_zero = bool(mask_zero)
        self.supports_masking = self.mask_zero

    def build(self, input_shape: Any = None) -> None:
        """Makes the table.

        Args:
          input_shape: not looked at: the shape of ids says nothing of the table.
        """
        if self.built:
            return
        shape = (self.num_rows, self.output_dim)
        sizes = [self.num_rows]
        # Both are of the whole table, as a norm over its rows.
        if not self.embeddings_regularizer and not self.embeddings_constraint:
            sizes = sharding.rows_of_shards(shape, self.variable_dtype)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._parts = [
            self.add_weight(
                name=self._weight_name,
                shape=(size, self.output_dim),
                initializer=of_shard(self.embeddings_initializer, start, shape),
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
                autocast=False,
            )
            for start, size in zip(starts, sizes, strict=True)
        ]
        sharding.join(self._parts)
        self.built = True

    @property
    def embeddings(self) -> Any:
        """The table, `[num_rows, output_dim]`: a variable, or, cut, a tensor."""
        if not self.built:
            raise AttributeError(f"{self.name} has no table yet: call build().")
        if len(self._parts) == 1:
            return self._parts[0]
        return tf.concat([part.value for part in self._parts], axis=0)

    def call(self, ids: Any, weights: Any = None) -> Any:
        """Returns the vectors.

        Args:
          ids: integers: a tensor, a `tf.RaggedTensor`, with a combiner also a
            `tf.SparseTensor`; or a list or dict of such.
          weights: a number for each id, in the same structure, for a combiner; None,
            also in places of the structure, for 1 each.

        Returns:
          In the structure of the ids, of the layer's compute dtype: without a combiner
          `[*ids.shape, output_dim]`, ragged where ids are; with one
          `[*ids.shape[:-1], output_dim]`.

        Raises:
          SpecError: ids are no integers, or weights do not fit them.
          InvalidArgumentError: an id is out of range, with oov='error'. Where XLA
            compiles the step, it cannot be raised: the id's vector is NaN.
        """
        given = tf.nest.flatten(ids)
        taken = [
            bags.bags_of(
                each,
                mine,
                combiner=self.combiner,
                dtype=self.variable_dtype,
                num_ids=None if self.oov == "hash" else self.input_dim,
                table=self._title,
            )
            for each, mine in zip(given, self._weights_of(ids, weights), strict=True)
        ]
        flat = taken[0].ids
        if len(taken) > 1:
            flat = tf.concat([each.ids for each in taken], axis=0)
        rows, kept = self._rows(flat)
        sizes = [tf.size(each.ids) for each in taken]
        split = tf.split(rows, sizes) if taken[1:] else [rows]
        keeps = [None] * len(taken) if kept is None else tf.split(kept, sizes)
        vectors = [
            tf.cast(each.joined(mine, self.combiner, keep), self.compute_dtype)
            for each, mine, keep in zip(taken, split, keeps, strict=True)
        ]
        return tf.nest.pack_sequence_as(ids, vectors)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns which ids are no padding; None where the layers behind see no ids.

        Args:
          inputs: ids, as `call` takes them.
          previous_mask: not looked at.
        """

        def mask(ids: Any) -> Any:
            if not self.mask_zero or self.combiner or isinstance(ids, tf.RaggedTensor):
                return None
            return keras.ops.not_equal(ids, 0)

        return keras.tree.map_structure(mask, inputs)

    def save_own_variables(self, store: Any) -> None:
        """Saves the table whole, as Keras does.

        Args:
          store: what to save in, by name.
        """
        store["0"] = np.concatenate([part.numpy() for part in self._parts])

    def load_own_variables(self, store: Any) -> None:
        """Loads a whole table.

        Args:
          store: what was saved, by name.

        Raises:
          ValueError: it has another shape.
        """
        value = store["0"]
        wanted = (self.num_rows, self.output_dim)
        if tuple(value.shape) != wanted:
            raise RefusedValueError(
                f"{self._title} has a table of {wanted}, and that of the file has "
                f"{tuple(value.shape)}: write its input_dim and output_dim."
            )
        start = 0
        for part in self._parts:
            part.assign(value[start : start + part.shape[0]])
            start += part.shape[0]

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for `from_config`."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(
                self.embeddings_initializer
            ),
            "embeddings_regularizer": keras.regularizers.serialize(
                self.embeddings_regularizer
            ),
            "embeddings_constraint": keras.constraints.serialize(
                self.embeddings_constraint
            ),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
            "oov": self.oov,
            "num_oov_buckets": self.num_oov_buckets,
        }

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} {self.name!r}"

    def _refused(self, argument: str, value: Any, instead: str) -> RefusedValueError:
        return RefusedValueError(
            f"{self._title}: {argument}={value!r}: write {instead}."
        )

    def _positive(self, argument: str, value: Any) -> int:
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = -1
        if number < 1:
            raise self._refused(argument, value, f"a positive number, {argument}=1000")
        return number

    def _weights_of(self, ids: Any, weights: Any) -> list[Any]:
        """Returns the weights of each input, in order."""
        if weights is None:
            return [None] * len(tf.nest.flatten(ids))
        try:
            tf.nest.assert_same_structure(ids, weights)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"{self._title} is given weights of another structure than ids: give "
                "the same keys, with None where all weights are 1."
            ) from error
        return tf.nest.flatten(weights)

    def _rows(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns rows `[n, output_dim]`, and which count, bool `[n]`; None for all."""
        places = self._unknown.rows_of(ids, self._title)
        parts = [sharding.copy_here(part.value) for part in self._parts]
        # Of a variable, not of its value: so TensorFlow reads these rows alone.
        rows = tf.nn.embedding_lookup(parts if parts[1:] else parts[0], places)
        kept = self._unknown.known(ids) if self.oov == "zero" else None
        if self.mask_zero and self.combiner:
            words = tf.not_equal(ids, 0)
            kept = words if kept is None else tf.logical_and(kept, words)
        return self._unknown.marked(rows, ids), kept


@_configurable
@keras.saving.register_keras_serializable("gin_estimator")
class ShardedEmbedding(Embedding):
    """`Embedding` by its first name: the table is made at once, and called `table`."""

    _weight_name = "table"

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        embeddings_initializer: Any = "uniform",
        name: str | None = None,
    ) -> None:
        """Makes the table; vectors are float32.

        Args:
          input_dim: number of ids, which count from 0.
          output_dim: size of a vector.
          embeddings_initializer: a Keras initializer, or its name.
          name: name of the layer.

        Raises:
          ValueError: a dimension is not positive.
        """
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer,
            # What gin binds for `Embedding` is not meant for this class.
            embeddings_regularizer=None,
            embeddings_constraint=None,
            mask_zero=False,
            combiner=None,
            oov="error",
            num_oov_buckets=None,
            name=name,
            dtype="float32",
        )
        self.build()

    @property
    def table(self) -> Any:
        """The table, a `tf.Variable`; a `ShardedVariable` where it is cut."""
        return variables.raw(sharding.whole(self._parts[0]))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for `from_config`."""
        taken = ("input_dim", "output_dim", "embeddings_initializer", "name")
        config = super().get_config()
        return {key: config[key] for key in taken}
