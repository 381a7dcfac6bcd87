"""Encodes the columns of a table into what a model sees: numbers and rows of tables.

By pure operations, without tables or other resources: so the encoding is part of a
dataset's graph on every strategy, its position can be saved, and a SavedModel has it.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline import RefusedValueError, ServingInputReceiver
from pipeline.export.sent_names import sent_names

from ..batching import of_known_rows
from ..columns import split_bag
from .features import Bag, Category, Cross, Feature, Number
from .fields import (
    Field,
    boundaries_of,
    fields_of,
    indicator_name,
    is_bag,
    layouts_of,
)
from .numbers import NumberEncoder, bucket_of
from .raw_values import filled, raw_value
from .refusals import Refusals
from .rows import RowEncoder
from .statistics import FeatureStatistics

# That of tf.feature_column's crossed_column.
_CROSS_KEY = 0xDECAFCAFFE


class Encoder:
    """Encodes batches by a schema and the statistics that it needs.

    Attributes:
      schema: the `Schema`.
      statistics: what was counted of each feature that needs it, by name.
      fields: what a model sees, in the order of the declaration.
    """

    def __init__(
        self, schema: Any, statistics: Mapping[str, FeatureStatistics]
    ) -> None:
        """Makes the constants of the encoding.

        Args:
          schema: the `Schema`.
          statistics: what was counted, by name of the feature.

        Raises:
          ValueError: statistics lack something; names the feature.
        """
        _check_counted(schema.needs, statistics)
        self.schema = schema
        self.statistics = dict(statistics)
        features: dict[str, Feature] = schema.features
        layouts = layouts_of(features, statistics)
        self.fields: tuple[Field, ...] = fields_of(features, layouts)
        self._read = {k: v for k, v in features.items() if not isinstance(v, Cross)}
        self._crosses = {k: v for k, v in features.items() if isinstance(v, Cross)}
        numbers = {k: v for k, v in features.items() if isinstance(v, Number)}
        plain = {k: v for k, v in numbers.items() if not v.is_category}
        self._numbers = NumberEncoder(plain, statistics)
        self._indicators = [name for name, each in plain.items() if each.indicator]
        self._buckets = {
            name: (each, boundaries_of(each, statistics.get(name)))
            for name, each in numbers.items()
            if each.is_category
        }
        discrete = [k for k, v in features.items() if isinstance(v, (Category, Bag))]
        self._rows = RowEncoder({name: layouts[name] for name in discrete})

    # No branch depends on a tensor, and rewriting all this takes seconds.
    @tf.autograph.experimental.do_not_convert
    def encode(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Encodes a batch.

        Args:
          features: the columns by name, as a reader of `schema.columns` gives them:
            float32, strings and int64 `[batch]`, ragged strings and int64
            `[batch, (items)]`. Of `schema.other_columns` any may be absent.

        Returns:
          The tensors of `fields` by name, and `schema.other_columns` as they came.

        Raises:
          TypeError, ValueError: a column is absent, or of another type or shape.
          tf.errors.InvalidArgumentError: a value is refused; names it and its feature.
        """
        refusals = Refusals()
        values = {
            name: filled(name, each, raw_value(name, each, features), refusals)
            for name, each in self._read.items()
        }
        found = self._numbers.encode(values)
        for name in self._indicators:
            is_missing = tf.math.is_nan(values[name])
            found[indicator_name(name)] = tf.cast(is_missing, tf.float32)
        for name, (feature, boundaries) in self._buckets.items():
            found[name] = values[name] = bucket_of(values[name], feature, boundaries)
        found |= self._rows.encode(values, refusals)
        found |= {k: self._crossed(cross, values) for k, cross in self._crosses.items()}
        encoded = refusals.checked(
            {each.name: found[each.name] for each in self.fields}
        )
        others = [name for name in self.schema.other_columns if name in features]
        return encoded | {name: features[name] for name in others}

    def serving_input_receiver_fn(self) -> ServingInputReceiver:
        """Describes a server that is sent the columns as a file has them, by name.

        A bag is sent as text with its separator between the items, and a column under
        the name that `sent_names` gives it. The signature `examples` takes serialized
        `tf.train.Example`s instead.
        """
        read = {each.column or name for name, each in self._read.items()}
        columns = {k: v for k, v in self.schema.columns.items() if k in read}
        names = sent_names(columns)

        def of_columns(sent: Mapping[str, tf.Tensor]) -> dict[str, Any]:
            received = {name: sent[names[name]] for name in columns}
            for name, column in columns.items():
                if column.is_bag:
                    received[name] = split_bag(received[name], column)
            return self.encode(received)

        def of_examples(sent: Mapping[str, tf.Tensor]) -> dict[str, Any]:
            parsers = {name: column.parser() for name, column in columns.items()}
            return self.encode(tf.io.parse_example(sent["examples"], parsers))

        dtypes = {k: tf.string if v.is_bag else v.dtype for k, v in columns.items()}
        specs = {
            names[name]: tf.TensorSpec([None], dtype, names[name])
            for name, dtype in dtypes.items()
        }
        examples = {"examples": tf.TensorSpec([None], tf.string, "examples")}
        return ServingInputReceiver(
            specs,
            of_columns,
            alternatives={"examples": ServingInputReceiver(examples, of_examples)},
        )

    def _crossed(self, feature: Cross, values: Mapping[str, Any]) -> Any:
        """Returns the rows of combinations.

        They are in tf.feature_column's order: what is sparse there, bags and buckets,
        comes first.
        """
        first = [part for part in feature.of if not self._is_category(part)]
        rest = [part for part in feature.of if self._is_category(part)]
        parts = [_crossable(values[part]) for part in first + rest]
        crossed = tf.ragged.cross_hashed(parts, feature.hash_buckets, _CROSS_KEY)
        rows = tf.cast(crossed, tf.int32)
        size = parts[0].shape[0]
        if is_bag(feature, self._read):
            return of_known_rows(rows, size)
        return tf.ensure_shape(rows.values, [size])

    def _is_category(self, name: str) -> bool:
        return isinstance(self._read[name], Category)


def _crossable(values: Any) -> Any:
    """Returns what can be crossed: strings or int64, `[batch, items]`."""
    if values.dtype != tf.string:
        values = tf.cast(values, tf.int64)
    return values if isinstance(values, tf.RaggedTensor) else values[:, None]


def _check_counted(
    needs: Mapping[str, frozenset[str]], statistics: Mapping[str, FeatureStatistics]
) -> None:
    for name, needed in needs.items():
        counted = statistics.get(name, FeatureStatistics())
        lacks = sorted(one for one in needed if getattr(counted, one) is None)
        if lacks:
            raise RefusedValueError(
                f"Feature {name!r} needs {', '.join(lacks)} of the training data, and "
                "the statistics have none: count them anew with this schema."
            )
