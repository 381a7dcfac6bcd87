"""Reads checkpoints of other programs by the names that their authors know.

tf.estimator and tf.compat.v1.train.Saver save by names, `dense/kernel`.
tf.train.Checkpoint saves by the way to an object, `model/layer-1/kernel`, and most
variables have their names beside it. A SavedModel holds either kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tensorflow.core.protobuf import trackable_object_graph_pb2

from pipeline.checkpoints.checkpoint_reader import Reader

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_COUNT = "save_counter"


class ForeignReader(Reader):
    """The content of a checkpoint that another program wrote.

    Attributes:
      ways: of a checkpoint by objects, the names in `shapes` by the ways to the
        objects, with and without TensorFlow's suffix.
    """

    def _named(self, shapes: Mapping[str, Any]) -> dict[str, str]:
        self.ways: dict[str, str] = {}
        if _OBJECTS not in shapes:
            return {key: key for key in shapes}
        keys = [k for k in shapes if k.endswith(_VALUE) and k != _COUNT + _VALUE]
        names = self._names_of_objects()
        by_name: dict[str, list[str]] = {}
        for key in sorted(keys):
            by_name.setdefault(names.get(key) or key, []).append(key)
        named = {}
        for name, same in by_name.items():
            # Two layers that have one name are told apart by the ways to them. Keras'
            # exports have each variable twice.
            is_one = len(same) == 1 or self._are_equal(same)
            for key in same:
                way = key.removesuffix(_VALUE)
                known = name.removesuffix(_VALUE) if is_one else way
                named[known] = key
                self.ways |= {way: known, key: known}
        return named

    def _are_equal(self, keys: Sequence[str]) -> bool:
        first, *others = (self._tensor(key) for key in keys)
        return all(np.array_equal(first, other) for other in others)

    def _names_of_objects(self) -> dict[str, str]:
        """Returns the names that variables had, by their keys."""
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(self._tensor(_OBJECTS))
        saved = (each for node in graph.nodes for each in node.attributes)
        return {each.checkpoint_key: each.full_name for each in saved}

    def name_of(self, given: str) -> str:
        """Returns a variable's name, which a user may have given as a way to it.

        Args:
          given: name or way, with or without TensorFlow's suffix.
        """
        return given if given in self.shapes else self.ways.get(given, given)
