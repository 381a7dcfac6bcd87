# SPDX-License-Identifier: Apache-2.0
"""Networks of tables, which are built from a Schema, and their model_fn.

    schema = Schema({"distance": "number", "carrier": "word"}, ...)
    estimator = ge.Estimator(
        functools.partial(table_model, head=BinaryClassHead()),
        modules={
            "network": functools.partial(wide_and_deep, schema),
            "optimizer": lambda: keras.optimizers.Adagrad(0.05),
            "wide_optimizer": lambda: keras.optimizers.Ftrl(0.1),
        },
        config=ge.RunConfig("runs/flights"),
    )

All networks take the encoded features of the schema, which the input_fn returns with
`columns=schema`, and return logits, float32 `[batch, num_outputs]`. x are the features with
`wide=True`, and x0 the vectors, one-hot features and numbers of an example in a row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from gin_estimator import EstimatorSpec, ModeKeys, TrainOp, errors

from .heads import Head
from .table_layers import DeepInput, FactorInput, Inputs, Vectors, WidePart, checked, numbers

Activation = str | Callable[[Any], Any]


class TableNetwork(keras.Model):
    """The base of networks of a Schema.

    A network has two methods: `_make(**options)` creates the layers, when the number of logits is
    known; `_logits(inputs, training)` returns the logits of checked features, or a list to add.

    Attributes:
      num_outputs: size of the logits; None until `table_model` sets that of its head.
      fields: fields of the Schema.
      wide: the linear part; None if it has none.
    """

    def __init__(
        self,
        name: str,
        schema: Any,
        num_outputs: int | None,
        **options: Any,
    ) -> None:
        """Prepares the schema; the first call creates the layers."""
        # Not the dtype of the network: features are ids and exact numbers.
        super().__init__(name=name, autocast=False)
        self._encoder = schema.prepared()
        self.fields = list(self._encoder.fields)
        self.num_outputs, self._options = num_outputs, options
        self.wide: WidePart | None = None

    def build(self, input_shape: Any = None) -> None:
        """Creates the layers.

        Raises:
          SpecError: num_outputs is not set.
        """
        if self.num_outputs is None:
            raise errors.SpecError(
                f"{self.name}.num_outputs is None: expected the number of logits."
            )
        self._make(**self._options)

    def call(self, features: Any, training: bool | None = None) -> tf.Tensor:
        """Returns logits, float32 `[batch, num_outputs]`.

        Args:
          features: encoded features by name.
          training: whether dropout and batch normalization are those of training.

        Raises:
          SpecError: the features are not those of the schema.
        """
        inputs, fits = checked(features, self.fields)
        parts = tf.nest.flatten(self._logits(inputs, training))
        logits = tf.add_n([tf.cast(each, tf.float32) for each in parts])
        return tf.where(fits, logits, float("nan"))  # XLA ignores the check.

    @property
    def wide_variables(self) -> list[Any]:
        """The trainable variables of the linear part."""
        return [] if self.wide is None else self.wide.trainable_variables

    @property
    def deep_variables(self) -> list[Any]:
        """The other trainable variables."""
        wide = {id(variable) for variable in self.wide_variables}
        return [variable for variable in self.trainable_variables if id(variable) not in wide]

    @property
    def serving_input_receiver_fn(self) -> Any:
        """The schema's: a server is sent raw columns, or serialized tf.Examples."""
        return self._encoder.serving_input_receiver_fn

    def _dense(self) -> keras.layers.Layer:
        return keras.layers.Dense(self.num_outputs, name="logits")


class _Sums(TableNetwork):
    """A linear part, dense layers on x0, or both."""

    def _make(self, *, is_wide: bool = False, hidden: Any = None, **options: Any) -> None:
        if is_wide:
            self.wide = WidePart(self.fields, self.num_outputs)
        self._is_deep = hidden is not None
        if self._is_deep:
            self.deep = DeepInput(self.fields)
            self.tower = _tower(hidden, **options)
            self.logits = self._dense()

    def _logits(self, inputs: Inputs, training: bool | None) -> Any:
        logits = [] if self.wide is None else [self.wide(inputs)]
        if self._is_deep:
            logits.append(self.logits(self.tower(self.deep(inputs), training=training)))
        return logits


class _Input(TableNetwork):
    """x0 alone."""

    def _make(self) -> None:
        self.deep = DeepInput(self.fields)

    def _logits(self, inputs: Inputs, training: bool | None) -> Any:
        return self.deep(inputs)


@gin.configurable
def input_layer(schema: Any) -> TableNetwork:
    """Returns x0 as a layer for a network of your own, as tf.feature_column.input_layer.

        keras.Sequential([input_layer(schema), keras.layers.Dense(8, "relu"), ...])

    It takes the encoded features and returns float32 `[batch, width]`: vectors, one-hot features,
    then numbers, in the order of the schema.

    Args:
      schema: a Schema, the same as that of the input_fn.
    """
    return _Input("input_layer", schema, 0)


def linear_of(schema: Any, num_outputs: int | None) -> TableNetwork:
    """Returns the linear model of a schema, see `linear`."""
    return _Sums("linear", schema, num_outputs, is_wide=True)


@gin.configurable
def dnn(
    schema: Any,
    num_outputs: int | None = None,
    *,
    hidden: Sequence[int] = (128, 64),
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> TableNetwork:
    """Returns dense layers on x0, as tf.estimator's DNNClassifier and DNNRegressor.

    These train by Adagrad with a rate of 0.05.

    Args:
      schema: a Schema, the same as that of the input_fn.
      num_outputs: number of logits; None for that of the head of `table_model`.
      hidden: units of each hidden layer.
      activation: activation of the hidden layers.
      dropout: part of each hidden layer's units that is dropped in training.
      batch_norm: whether the output of each hidden layer is normalized.
    """
    options = {"activation": activation, "dropout": dropout, "batch_norm": batch_norm}
    return _Sums("dnn", schema, num_outputs, hidden=hidden, **options)


@gin.configurable
def wide_and_deep(
    schema: Any,
    num_outputs: int | None = None,
    *,
    hidden: Sequence[int] = (128, 64),
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> TableNetwork:
    """Returns the sum of a linear model of x and dense layers on x0.

    Wide & Deep Learning for Recommender Systems (Cheng et al. 2016, arXiv:1606.07792), as
    tf.estimator's DNNLinearCombinedClassifier, which trains the first by FTRL at min(0.005,
    1 / sqrt(features)), the `wide_optimizer` of `table_model`, and the rest by Adagrad at 0.001.
    The arguments are those of `dnn`.
    """
    options = {"activation": activation, "dropout": dropout, "batch_norm": batch_norm}
    return _Sums("wide_and_deep", schema, num_outputs, is_wide=True, hidden=hidden, **options)


class _Cross(keras.layers.Layer):
    """x0 * (W x + b) + x, where W = V U with a rank."""

    def __init__(self, rank: int | None, name: str) -> None:
        super().__init__(name=name)
        self.down = keras.layers.Dense(rank, use_bias=False, name="down") if rank else None

    def build(self, input_shape: Any) -> None:
        self.up = keras.layers.Dense(input_shape[-1], name="up")

    def call(self, x0: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return x0 * self.up(x if self.down is None else self.down(x)) + x


class _DcnV2(TableNetwork):
    def _make(
        self, *, cross_layers: int, rank: int | None, is_parallel: bool, hidden: Any, dropout: float
    ) -> None:
        self.deep = DeepInput(self.fields)
        self.crosses = [_Cross(rank, f"cross_{i}") for i in range(cross_layers)]
        self.tower = _tower(hidden, dropout=dropout)
        self._is_parallel = is_parallel
        self.logits = self._dense()

    def _logits(self, inputs: Inputs, training: bool | None) -> Any:
        x0 = x = self.deep(inputs)
        for cross in self.crosses:
            x = cross(x0, x)
        if self._is_parallel:
            return self.logits(tf.concat([x, self.tower(x0, training=training)], axis=1))
        return self.logits(self.tower(x, training=training))


@gin.configurable
def dcn_v2(
    schema: Any,
    num_outputs: int | None = None,
    *,
    cross_layers: int = 3,
    rank: int | None = None,
    hidden: Sequence[int] = (128, 64),
    structure: str = "parallel",
    dropout: float = 0.0,
) -> TableNetwork:
    """Returns layers that multiply features with each other, and dense layers.

    DCN V2: Improved Deep & Cross Network (Wang et al. 2020, arXiv:2008.13535). A cross layer is

        x[l+1] = x0 * (W x[l] + b) + x[l]

    where W has a `rank`, or is full with None; L is `cross_layers`. With the structure 'parallel',
    logits = [x[L], tower(x0)] W + b; with 'stacked', logits = tower(x[L]) W + b. The other
    arguments are those of `dnn`.

    Raises:
      SpecError: `structure` has another value.
    """
    if structure not in ("parallel", "stacked"):
        raise errors.SpecError(
            f"dcn_v2.structure is {structure!r}: expected 'parallel' or 'stacked'."
        )
    options = {"cross_layers": cross_layers, "rank": rank, "is_parallel": structure == "parallel"}
    return _DcnV2("dcn_v2", schema, num_outputs, hidden=hidden, dropout=dropout, **options)


class _Pairs(keras.layers.Layer):
    """The sum of the products of all pairs of vectors, in linear time.

    sum_{i<j} <v_i, v_j> = sum_k ((sum_i v_ik)^2 - sum_i v_ik^2) / 2; several outputs weigh the
    dimensions k by trained numbers, which are 1 at first.
    """

    def __init__(self, num_outputs: int) -> None:
        super().__init__(name="pairs", dtype="float32")
        self._size = num_outputs

    def build(self, input_shape: Any) -> None:
        if self._size > 1:
            self.kernel = self.add_weight((input_shape[-1], self._size), "ones", name="kernel")

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        squares = tf.reduce_sum(tf.square(vectors), axis=1)
        products = (tf.square(tf.reduce_sum(vectors, axis=1)) - squares) / 2
        if self._size > 1:
            return tf.matmul(products, self.kernel)
        return tf.reduce_sum(products, axis=1, keepdims=True)


class _DeepFm(TableNetwork):
    def _make(self, *, embedding_dim: int, **options: Any) -> None:
        self.wide = WidePart(self.fields, self.num_outputs)
        self.deep = FactorInput(self.fields, embedding_dim)
        self.pairs = _Pairs(self.num_outputs)
        self.tower = _tower(**options)
        self.logits = self._dense()

    def _logits(self, inputs: Inputs, training: bool | None) -> Any:
        vectors = self.deep(inputs)
        row = tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])
        deep = self.logits(self.tower(row, training=training))
        return [self.wide(inputs), self.pairs(vectors), deep]


@gin.configurable
def deep_fm(
    schema: Any,
    num_outputs: int | None = None,
    *,
    embedding_dim: int = 16,
    hidden: Sequence[int] = (128, 64),
    activation: Activation = "relu",
    dropout: float = 0.0,
) -> TableNetwork:
    """Returns a factorization machine, and dense layers on the same vectors.

    DeepFM (Guo et al. 2017, arXiv:1703.04247). Each field has a vector v: rows of its table, or a
    number times a trained vector. Then

        logits = x w + b + sum_{i<j} <v_i, v_j> + tower([v_1, ..., v_n])

    The size of all vectors is `embedding_dim`, whatever the schema has; features with
    embedding=None, such as crosses, have none. The other arguments are those of `dnn`.
    """
    options = {"hidden": hidden, "activation": activation, "dropout": dropout}
    return _DeepFm("deep_fm", schema, num_outputs, embedding_dim=embedding_dim, **options)


class _Dlrm(TableNetwork):
    def _make(self, *, embedding_dim: int, bottom: Any, hidden: Any, dropout: float) -> None:
        self.vectors = Vectors(self.fields, embedding_dim)
        self.bottom = _tower([*bottom, embedding_dim], name="bottom")
        self.top = _tower(hidden, dropout=dropout, name="top")
        self.logits = self._dense()

    def _logits(self, inputs: Inputs, training: bool | None) -> Any:
        bottom = [self.bottom(tf.cast(x, self.compute_dtype)) for x in numbers(inputs, self.fields)]
        stacked = tf.stack(bottom + self.vectors(inputs), axis=1)
        products = tf.matmul(stacked, stacked, transpose_b=True)
        count = stacked.shape[1]
        below = [i * count + j for i in range(count) for j in range(i)]  # The diagonal.
        pairs = tf.gather(tf.reshape(products, [-1, count * count]), below, axis=1)
        return self.logits(self.top(tf.concat([*bottom, pairs], axis=1), training=training))


@gin.configurable
def dlrm(
    schema: Any,
    num_outputs: int | None = None,
    *,
    embedding_dim: int = 16,
    bottom_hidden: Sequence[int] = (64,),
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.0,
) -> TableNetwork:
    """Returns products of all pairs of vectors, between dense layers below and above.

    Deep Learning Recommendation Model (Naumov et al. 2019, arXiv:1906.00091). With the numbers x
    and the vectors v_1 to v_n of categories and bags:

        v_0 = bottom(x), logits = top([v_0, <v_i, v_j> for all i > j]) W + b

    where the bottom has layers of `bottom_hidden` and `embedding_dim` units, and the top those of
    `hidden`, with dropout. The vectors are those of `deep_fm`; without numbers v_0 is left out.
    """
    options = {"bottom": bottom_hidden, "hidden": hidden, "dropout": dropout}
    return _Dlrm("dlrm", schema, num_outputs, embedding_dim=embedding_dim, **options)


def _tower(
    hidden: Sequence[int],
    *,
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
    name: str = "tower",
) -> keras.layers.Layer:
    layers: list[keras.layers.Layer] = []
    for units in hidden:
        layers.append(keras.layers.Dense(units, activation=activation))
        if dropout:
            layers.append(keras.layers.Dropout(dropout))
        if batch_norm:
            layers.append(keras.layers.BatchNormalization(momentum=0.999))  # As tf.estimator.
    return keras.Sequential(layers, name=name) if layers else keras.layers.Identity(name=name)


@gin.configurable
def table_model(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    wide_optimizer: keras.optimizers.Optimizer | None = None,
    *,
    head: Head,
    clip_norm: float | None = None,
    lazy: bool = False,
) -> EstimatorSpec:
    """Returns the spec of a network of tables and a head.

    Args:
      features: encoded features by name, and the weight columns of the head.
      labels: labels of the head.
      mode: one of `ModeKeys`.
      network: `linear`, `dnn` or another; its number of logits is that of the head.
      optimizer: updates the network; None outside of TRAIN.
      wide_optimizer: updates the linear part, and `optimizer` the rest; None for one optimizer.
      head: a head of `gin_estimator.models`.
      clip_norm: maximum global norm of the gradient of each optimizer; None for none.
      lazy: whether `optimizer` moves only the rows of the batch, see `TrainOp`.

    Raises:
      SpecError: features, labels, network and head do not fit each other.
    """
    if isinstance(network, TableNetwork):
        needed = head.logits_dimension
        if network.num_outputs not in (None, needed):
            raise errors.SpecError(
                f"{network.name}.num_outputs is {network.num_outputs}: expected {needed} for "
                f"{type(head).__name__}. Set {network.name}.num_outputs=None."
            )
        network.num_outputs = needed
    logits = network(features, training=mode == ModeKeys.TRAIN)
    train_ops = None
    if mode == ModeKeys.TRAIN:
        train_ops = [
            TrainOp(optimizer, network.trainable_variables, clip_norm=clip_norm, lazy=lazy)
        ]
        if wide_optimizer is not None:
            wide, deep = _parts(network)
            train_ops = [
                TrainOp(optimizer, deep, clip_norm=clip_norm, lazy=lazy),
                TrainOp(wide_optimizer, wide, clip_norm=clip_norm),
            ]
    return head.create_estimator_spec(
        features, mode, logits, labels, train_op=train_ops, regularization_losses=network.losses
    )


def _parts(network: keras.Model) -> tuple[list[Any], list[Any]]:
    """Returns the variables of the two optimizers."""
    parts = {name: getattr(network, f"{name}_variables", []) for name in ("wide", "deep")}
    for name, variables in parts.items():
        if not variables:
            raise errors.SpecError(
                f"{network.name} has no {name} part: expected one with a wide_optimizer. Set "
                "modules={'network': ..., 'optimizer': ...}."
            )
    return parts["wide"], parts["deep"]
