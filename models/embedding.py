# SPDX-License-Identifier: Apache-2.0
"""Embeddings: tables of vectors by id, of which a step reads only the rows of its batch."""

import inspect
from typing import Any

import gin
import keras
import tensorflow as tf

import gin_estimator as ge

from .features import asserted

_COMBINERS = ("sum", "mean", "sqrtn")
_OOV = ("error", "zero", "hash")
# The first integer from which on a dtype does not have every integer.
_EXACT = {tf.bfloat16: 2**8, tf.float16: 2**11, tf.float32: 2**24, tf.float64: 2**53}
# The finalizer of SplitMix64: shifts to the right, and the factors after them.
_SHIFTS = (30, 27, 31)
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64, 1)


def _configurable(layer: type) -> type:
    """Registers a layer with gin; Keras reads the signature of a layer's constructor."""
    signature = inspect.signature(layer.__init__)
    layer = gin.configurable(layer)
    layer.__init__.__signature__ = signature
    return layer


@_configurable
@keras.saving.register_keras_serializable("gin_estimator")
class Embedding(keras.layers.Layer):
    """Looks up a vector for each id, or one for each bag of ids.

    It returns the same as `keras.layers.Embedding`, and continues from its checkpoints. Keras'
    layer reads the whole table in each step; this one reads the rows of the batch, and SGD,
    Adagrad and Ftrl, or `TrainOp(lazy=True)`, write only these. On parameter servers a large
    table is cut over the servers.

        vectors = Embedding(1_000_000, 32)(ids)                       # [..., 32]
        vectors = Embedding(50_000, 16, combiner="mean")(ragged_ids)  # [batch, 16]

    Of a bag with vectors v and weights w, "sum" is sum(w v), "mean" sum(w v) / sum(w), "sqrtn"
    sum(w v) / sqrt(sum(w^2)). An empty bag gives 0.

    Attributes:
      num_rows: `input_dim`, and the rows of other ids with oov='hash'.
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
        num_oov_buckets: int = 1,
        **options: Any,
    ) -> None:
        """Describes the table, which the first call or `build()` creates.

        Args:
          input_dim: number of ids, which count from 0.
          output_dim: size of a vector.
          embeddings_initializer: Keras initializer, or its name.
          embeddings_regularizer: Keras regularizer, or its name. It reads the whole table in
            each step; `activity_regularizer` gets only the vectors of the batch.
          embeddings_constraint: Keras constraint, or its name. It reads the whole table, too.
          mask_zero: whether id 0 is padding: masked as by Keras, and left out of bags.
          combiner: 'sum', 'mean' or 'sqrtn' for a vector for each bag; None for each id.
          oov: effect of an id below 0, or from `input_dim` on. 'error' ends the step; 'zero'
            gives a vector of 0, and leaves the id out of bags; 'hash' uses one of
            `num_oov_buckets` more rows.
          num_oov_buckets: number of these rows.
          **options: arguments of `keras.layers.Layer`, such as name, dtype, trainable.

        Raises:
          UserValueError: an argument is out of its range.
        """
        # Keras would cast the whole table; here the vectors are cast.
        super().__init__(**{**options, "autocast": False})
        _check_one_of("combiner", combiner, (None, *_COMBINERS))
        _check_one_of("oov", oov, _OOV)
        self.input_dim = _positive("input_dim", input_dim)
        self.output_dim = _positive("output_dim", output_dim)
        self.num_oov_buckets = _positive("num_oov_buckets", num_oov_buckets)
        if oov != "hash" and num_oov_buckets != 1:
            raise ge.errors.UserValueError(
                f"Embedding.num_oov_buckets is {num_oov_buckets!r} with oov={oov!r}: expected "
                "1. Set oov='hash'."
            )
        self.combiner = combiner
        self.oov = oov
        self.num_rows = self.input_dim + (num_oov_buckets if oov == "hash" else 0)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self._table: ge.EmbeddingTable | None = None

    def build(self, input_shape: Any = None) -> None:
        """Creates the table; the shape of the ids has no effect on it."""
        if self.built:
            return
        self._table = ge.EmbeddingTable(
            self,
            self._weight_name,
            (self.num_rows, self.output_dim),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )
        self.built = True

    @property
    def embeddings(self) -> Any:
        """The Keras variable `[num_rows, output_dim]`; if it is cut, a ShardedVariable."""
        if self._table is None:
            raise AttributeError(f"{self.name} has no table before its first call or build().")
        return self._table.whole

    def call(self, ids: Any, weights: Any = None) -> Any:
        """Returns the vectors, in the layer's compute dtype.

        Args:
          ids: integers. Without a combiner a tensor or a RaggedTensor of any shape. With one,
            `[batch, ids]` as a tensor, RaggedTensor or SparseTensor; `[batch]` are bags of one.
          weights: a number for each id, of the same kind and shape, for a combiner; None for 1.

        Returns:
          Without a combiner `[*ids.shape, output_dim]`, with one `[batch, output_dim]`.

        Raises:
          SpecError: the ids are not integers, or the weights do not fit them.
          InvalidArgumentError: an id is out of range, with oov='error'. Under XLA, which ignores
            checks, its vector is NaN instead.
        """
        ids = self._integers(ids)
        if self.combiner is not None:
            return tf.cast(self._combined(ids, weights), self.compute_dtype)
        if weights is not None or isinstance(ids, tf.SparseTensor):
            given = "weights" if weights is not None else "a SparseTensor"
            raise ge.errors.SpecError(
                f"{self._title} got {given} and has no combiner: expected one. Set combiner='sum'."
            )
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self._vectors(ids.flat_values))
        return self._vectors(ids)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Returns which ids are not padding; None for bags, ragged ids, or without mask_zero."""
        if not self.mask_zero or self.combiner or isinstance(inputs, tf.RaggedTensor):
            return None
        return keras.ops.not_equal(inputs, 0)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for `from_config`."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
            "oov": self.oov,
            "num_oov_buckets": self.num_oov_buckets,
        }

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} {self.name}"

    def _integers(self, ids: Any) -> Any:
        """Returns ids as int64; refuses what may have been rounded to another id."""
        if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            ids = tf.convert_to_tensor(ids)
        if ids.dtype.is_integer and ids.dtype != tf.uint64:
            return tf.cast(ids, tf.int64)
        if self.oov == "hash" or self.input_dim > _EXACT.get(ids.dtype, 0):
            raise ge.errors.SpecError(
                f"{self._title} got ids of {ids.dtype.name}, which does not have all of them: "
                "expected integers. Set tf.cast(ids, tf.int64). keras.Sequential casts its input: "
                "begin it with keras.Input([...], dtype='int64')."
            )
        values = getattr(ids, "flat_values", getattr(ids, "values", ids))
        whole = tf.debugging.assert_equal(
            values, tf.floor(values), f"{self._title} got ids that are no whole numbers"
        )
        with tf.control_dependencies([whole] if whole is not None else []):
            return tf.cast(ids, tf.int64)

    def _vectors(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns a vector for each id; 0 for an unknown one with oov='zero'."""
        rows = tf.cast(self._table.gather(self._rows(ids)), self.compute_dtype)
        if self.oov != "zero":
            return rows
        return tf.where(self._is_known(ids)[..., tf.newaxis], rows, tf.zeros_like(rows))

    def _combined(self, ids: Any, weights: Any) -> tf.Tensor:
        """Returns a vector for each bag."""
        values, bags, num_bags = self._flat(ids)
        numbers = tf.ones_like(values, self.variable_dtype)
        if weights is not None:
            numbers = self._weights(ids, weights, bags)
        kept = self._is_known(values) if self.oov == "zero" else tf.ones_like(values, tf.bool)
        if self.mask_zero:
            kept &= values != 0
        # Not by a product: the weight of padding may be NaN.
        numbers = tf.where(kept, numbers, tf.zeros_like(numbers))[:, tf.newaxis]

        def total(each: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(each, bags, num_bags)

        vectors = total(self._table.gather(self._rows(values)) * numbers)
        if self.combiner != "sum":
            divisors = total(numbers if self.combiner == "mean" else tf.square(numbers))
            is_empty = divisors == 0
            # The gradient of the root of 0 is infinite: an empty bag would make it NaN.
            divisors = tf.where(is_empty, tf.ones_like(divisors), divisors)
            divisors = divisors if self.combiner == "mean" else tf.sqrt(divisors)
            vectors = tf.where(is_empty, tf.zeros_like(vectors), vectors / divisors)
        return tf.ensure_shape(vectors, [ids.shape[0], self.output_dim])

    def _flat(self, ids: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the values of bags of any kind, their bags by number, and the number of bags."""
        if ids.shape.rank == 1 and not isinstance(ids, tf.SparseTensor):
            ids = ids[:, tf.newaxis]
        if ids.shape.rank != 2:
            raise ge.errors.SpecError(
                f"{self._title} got ids of shape {ids.shape}: expected [batch, ids] with a "
                "combiner. Reshape them in model_fn."
            )
        if isinstance(ids, tf.RaggedTensor):
            return ids.flat_values, ids.value_rowids(), ids.nrows()
        if isinstance(ids, tf.SparseTensor):
            return ids.values, ids.indices[:, 0], ids.dense_shape[0]
        shape = tf.shape(ids)
        return tf.reshape(ids, [-1]), tf.repeat(tf.range(shape[0]), shape[1]), shape[0]

    def _weights(self, ids: Any, weights: Any, bags: tf.Tensor) -> tf.Tensor:
        if tf.is_tensor(ids) and not tf.is_tensor(weights):
            weights = tf.convert_to_tensor(weights)
        names = [_kind(each) + str(each.shape) for each in (ids, weights)]
        if _kind(ids) != _kind(weights) or not ids.shape.is_compatible_with(weights.shape):
            raise ge.errors.SpecError(
                f"{self._title} got weights {names[1]} for ids {names[0]}: expected the same kind "
                "and shape."
            )
        numbers, others, _ = self._flat(weights)
        same = tf.debugging.assert_equal(bags, others, "expected a weight for each id of a bag")
        with tf.control_dependencies([same] if same is not None else []):
            return tf.cast(numbers, self.variable_dtype)

    def _is_known(self, ids: tf.Tensor) -> tf.Tensor:
        return (ids >= 0) & (ids < self.input_dim)

    def _rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the number of the row to read for each id."""
        if self.oov == "error":
            return self._checked(ids)
        known = self._is_known(ids)
        if self.oov == "hash":
            return tf.where(known, ids, self.input_dim + _hash(ids, self.num_oov_buckets))
        # Another id of the batch, so that no row outside of it is updated.
        return tf.where(known, ids, tf.reduce_max(tf.where(known, ids, 0)))

    def _checked(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the ids, and ends the step if one is out of range."""
        least, most = tf.reduce_min(ids), tf.reduce_max(ids)
        text = (
            f"{self._title}: expected ids from 0 to {self.input_dim - 1}. Set a larger input_dim, "
            "or oov=zero or hash. An id is"
        )
        fits = (least >= 0) & (most < self.input_dim)
        return asserted(ids, fits, [text, tf.where(least < 0, least, most)])


@_configurable
@keras.saving.register_keras_serializable("gin_estimator")
class ShardedEmbedding(Embedding):
    """The first name of `Embedding`, whose table is called `table` and created at once."""

    _weight_name = "table"

    def __init__(self, input_dim: int, output_dim: int, **options: Any) -> None:
        """Creates the table; see `Embedding`."""
        super().__init__(input_dim, output_dim, **{"dtype": "float32", **options})
        self.build()

    @property
    def table(self) -> Any:
        """The table as a tf.Variable; if it is cut, a ShardedVariable."""
        parts = self._table.parts
        return parts[0].value if len(parts) == 1 else self._table.whole


def _hash(ids: tf.Tensor, num_buckets: int) -> tf.Tensor:
    """Returns a bucket for each id, the same on each device: 64-bit integers alone."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=True):
        # TensorFlow's shift repeats the sign; zeros are needed.
        unsigned = tf.constant((1 << (64 - shift)) - 1, tf.int64)
        shifted = tf.bitwise.right_shift(ids, tf.constant(shift, tf.int64))
        ids = tf.bitwise.bitwise_xor(ids, tf.bitwise.bitwise_and(shifted, unsigned))
        ids *= tf.constant(factor, tf.int64)
    return tf.math.floormod(ids, num_buckets)


def _kind(values: Any) -> str:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    return next((kind.__name__ for kind in kinds if isinstance(values, kind)), "Tensor")


def _check_one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ge.errors.UserValueError(f"Embedding.{name} is {value!r}: expected one of {choices}.")


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ge.errors.UserValueError(
            f"Embedding.{name} is {value!r}: expected an integer above 0."
        )
    return value
