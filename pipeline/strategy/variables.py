"""Names every variable of a module, by a name that outlives the process.

Keras names layers by a counter of the process (`dense_7`), and its own checkpoint tree
drops layers in lists and dicts, and dropout's generators. Names here come from the
module's structure: `conv2d/kernel`, `conv2d_1/kernel`, `head/bias`,
`dropout/seed_generator_state`; `velocity/dense/kernel` in an optimizer.
"""

import contextlib
import itertools
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedRuntimeError, RefusedTypeError
from pipeline.strategy import sharding
from pipeline.strategy.sharding import ShardedVariable, shards_of

# Each variable or lookup table by its module's name and by its name in the module.
State = Mapping[str, Mapping[str, Any]]

_TABLES = (
    tf.lookup.experimental.MutableHashTable,
    tf.lookup.experimental.DenseHashTable,
)
# The name of a variable that was given none, by a counter of the process.
_UNNAMED = re.compile(r"\Avariable_\d+\Z")


def raw(variable: Any) -> tf.Variable:
    """Returns the `tf.Variable` under a Keras variable, which a checkpoint needs."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def is_trackable_module(module: Any) -> bool:
    """Whether `named_state` can find the state of `module`."""
    return isinstance(
        module,
        (
            keras.Layer,
            keras.optimizers.Optimizer,
            keras.Variable,
            keras.random.SeedGenerator,
            tf.Variable,
            tf.Module,
            tf.__internal__.tracking.Trackable,
        ),
    )


def named_state(module: Any, references: Mapping[str, Any] | None = None) -> dict:
    """Returns all state of `module` by name, in the order of `module.variables`.

    Args:
      module: Keras layer, model, optimizer, seed generator or variable, `tf.Module`,
        `tf.Variable`, or a lookup table.
      references: variables by name that an optimizer's slots may belong to.

    Returns:
      `{name: variable or table}`; a lone variable has the name `""`. Immutable
      lookup tables are left out, as they hold no state to save.

    Raises:
      RuntimeError: Keras has a variable that is in none of the layers.
    """
    if isinstance(module, keras.optimizers.Optimizer):
        return _unique(_optimizer_names(module, references or {}))
    if isinstance(module, keras.Layer):
        names = {id(v): name for name, v in _unique(_layer_names(module)).items()}
        mine = sharding.without_later_shards(module.variables)
        lost = [v.path for v in mine if id(v) not in names]
        if lost:
            raise RefusedRuntimeError(
                f"Keras variables {lost} of {module.name} are in none of its layers, "
                "and would be missing from checkpoints: make them by add_weight in a "
                "layer that is an attribute of it."
            )
        return {names[id(v)]: sharding.whole(v) for v in mine}
    return _unique(_object_names(module, seen=set()))


def flat(state: State) -> dict[str, Any]:
    """Returns every variable and table by its full name: `network/dense/kernel`."""
    return {
        f"{module}/{name}".rstrip("/"): value
        for module, named in state.items()
        for name, value in named.items()
    }


def variables_of(state: State) -> dict[str, tf.Variable]:
    """Returns every variable by its full name, as `flat` does."""
    return {name: value for name, value in flat(state).items() if is_variable(value)}


def tables_of(state: State) -> dict[str, Any]:
    """Returns every lookup table by its full name: `vocabulary/table`."""
    return {n: value for n, value in flat(state).items() if not is_variable(value)}


def is_variable(value: Any) -> bool:
    """Whether a value of a `State` is a variable, whole or in shards, and no table."""
    return isinstance(value, (tf.Variable, ShardedVariable))


def tables(module: Any) -> list[Any]:
    """Returns every lookup table of `module` once, with or without state.

    Tables in lists and dicts of Keras layers are found, too, where TensorFlow does not
    look.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tf.saved_model.experimental.TrackableResource):
            found[id(value)] = value
        elif isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, set)):
            waiting.extend(value)
        elif isinstance(value, tf.__internal__.tracking.Trackable):
            waiting.extend(getattr(value, "__dict__", {}).values())
    return list(found.values())


def unbuilt_parts(module: Any) -> list[str]:
    """Returns name prefixes of layers and optimizers that have no variables yet.

    The values of a checkpoint below them cannot be restored in this mode, and are not
    needed: a discriminator's in PREDICT, an optimizer's in EVAL.
    """
    if isinstance(module, keras.optimizers.Optimizer):
        return [] if module.built else [""]
    return sorted(prefix for prefix, layer in layers(module) if not layer.built)


def optimizer_prefixes(modules: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the full name prefixes of the optimizers among modules, `optimizer/`."""
    kind = keras.optimizers.Optimizer
    return tuple(f"{name}/" for name, m in modules.items() if isinstance(m, kind))


def is_rate(name: str, among: Container[str]) -> bool:
    """Whether a name is an optimizer's learning rate.

    Args:
      name: name in a module, or full name.
      among: all names of the module, or of the run. The iterations beside a rate tell
        it from a variable that the user has called so.
    """
    match = re.fullmatch(r"(.*/)?learning_rate(_\d+)?", name)
    return match is not None and f"{match[1] or ''}iteration" in among


def parts(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields every layer, random stream and immutable table, each with its name prefix.

    Args:
      module: any kind of module; an optimizer has no such parts.
    """
    return _parts(module, "", set())


def _parts(value: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or isinstance(value, keras.optimizers.Optimizer):
        return
    seen.add(id(value))
    if isinstance(value, keras.Layer):
        for below, layer in layers(value):
            yield f"{prefix}{below}", layer
            for item in vars(layer).values():
                if isinstance(item, keras.random.SeedGenerator):
                    yield f"{prefix}{below}", item
    elif isinstance(value, (keras.random.SeedGenerator, tf.lookup.StaticHashTable)):
        yield prefix, value
    else:
        for key, item in _items(value):
            yield from _parts(item, f"{prefix}{key}/", seen)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields what a container or a `tf.Module` holds, by key, number or attribute."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    elif isinstance(value, (tf.Module, tf.__internal__.tracking.AutoTrackable)):
        own = vars(value).items()
        yield from ((key, item) for key, item in own if not key.startswith("_self_"))


def finalize(modules: Iterable[Any]) -> None:
    """Lets layers take over their variables that were set from outside.

    `Normalization` computes with constants, which it made of its variables.
    """
    for _, part in itertools.chain.from_iterable(map(parts, modules)):
        if isinstance(part, keras.layers.Normalization):
            part.finalize_state()


@contextlib.contextmanager
def read_when_run(modules: Iterable[Any]) -> Iterator[None]:
    """Has programs that are traced in the block read variables in place of constants.

    `Normalization` computes with constants, which it made of its variables. A program
    that has them in it would go on with the values of the checkpoint that it was traced
    with.
    """
    found = [
        part
        for _, part in itertools.chain.from_iterable(map(parts, modules))
        if isinstance(part, keras.layers.Normalization)
    ]
    # Replicas are traced in threads that take turns. The one that comes first sets the
    # layers, and gives the constants back; the others find tensors of the trace there,
    # and leave them.
    before = [
        (part, part.mean, part.variance)
        for part in found
        if part.built and not tf.is_symbolic_tensor(part.mean)
    ]
    for part, _, _ in before:
        part.finalize_state()
    try:
        yield
    finally:
        for part, mean, variance in before:
            part.mean, part.variance = mean, variance


def _optimizer_names(
    optimizer: keras.optimizers.Optimizer, references: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yields an optimizer's variables: a slot's name ends in that of its reference.

    Keras tells a slot's reference by the beginning of its name alone.
    """
    prefixes = {
        _slot_prefix(shard): name
        for name, variable in references.items()
        for shard in getattr(variable, "parts", None) or shards_of(variable)
    }
    # The longest first: `dense_` begins the slots of `dense_1_` as well.
    by_length = sorted(prefixes, key=len, reverse=True)
    names: list[tuple[str, Any]] = []
    sharded: dict[str, list[tf.Variable]] = {}
    for variable in optimizer.variables:
        name = str(variable.name)
        prefix = next((p for p in by_length if name.startswith(p)), None)
        if prefix is not None:
            reference = prefixes[prefix]
            name = f"{name[len(prefix) :]}/{reference}"
            if isinstance(references[reference], ShardedVariable):
                # Keras has a slot for each shard. They are saved as one, at the place
                # of the first, where the slot of a whole variable would be.
                sharded.setdefault(name, []).append(raw(variable))
                if len(sharded[name]) > 1:
                    continue
        names.append((_UNNAMED.sub("variable", name), variable))
    for name, variable in names:
        yield name, ShardedVariable(sharded[name]) if name in sharded else variable


def _slot_prefix(reference: Any) -> str:
    """Returns how Keras begins the name of a slot of `reference`."""
    path = getattr(reference, "path", None) or reference.name
    return re.sub("[/:]", "_", str(path)) + "_"


def layers(module: Any) -> Iterator[tuple[str, keras.Layer]]:
    """Yields a layer and all below it, each with its name prefix, a shared one once.

    Args:
      module: a layer; any other kind of module yields none.
    """
    seen: set[int] = set()

    def walk(layer: keras.Layer, prefix: str) -> Iterator[tuple[str, keras.Layer]]:
        seen.add(id(layer))
        yield prefix, layer
        taken: dict[str, int] = {}
        for child in _children(layer):
            name = _count(_layer_name(child, layer), taken)
            if id(child) not in seen:
                yield from walk(child, f"{prefix}{name}/")

    return walk(module, "") if isinstance(module, keras.Layer) else iter(())


def _layer_names(layer: keras.Layer) -> Iterator[tuple[str, Any]]:
    """Yields the variables of a layer, each by the innermost layer that has it."""
    for prefix, each in layers(layer):
        below = {id(v) for child in _children(each) for v in child.variables}
        for variable in sharding.without_later_shards(each.variables):
            if id(variable) not in below:
                yield f"{prefix}{_UNNAMED.sub('variable', variable.name)}", variable


def _children(layer: keras.Layer) -> list[keras.Layer]:
    """Returns the direct sublayers in order of assignment, in lists and dicts, too.

    Keras has a public way to them for models alone.
    """
    return list(layer._layers)


def _layer_name(layer: keras.Layer, above: keras.Layer) -> str:
    """Returns the name that the user gave, or the class' name without the counter."""
    words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    base = re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()
    if isinstance(above, keras.layers.Bidirectional):  # It has `forward_lstm_1`.
        base = f"(?:forward_|backward_){base}"
    match = re.fullmatch(rf"({base})(_\d+)?", layer.name)
    return match[1] if match else layer.name


def _object_names(
    value: Any, seen: set[int], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    name = prefix.rstrip("/")
    if isinstance(value, (keras.Variable, tf.Variable, ShardedVariable, *_TABLES)):
        yield name, value
    elif isinstance(value, keras.random.SeedGenerator):
        yield f"{prefix}seed_generator_state", value.state
    elif isinstance(value, (keras.Layer, keras.optimizers.Optimizer)):
        yield from ((f"{prefix}{key}", v) for key, v in named_state(value).items())
    else:
        for key, item in _items(value):
            yield from _object_names(item, seen, f"{prefix}{key}/")


def _unique(names: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    taken: dict[str, int] = {}
    named: dict[str, Any] = {}
    for name, value in names:
        # A dict's key "" would make an empty part, which no key of a checkpoint has.
        name = "/".join(filter(None, name.split("/")))
        unique = _count(name, taken)
        while unique in named:
            unique = _count(unique, taken)
        named[unique] = value
    return named


def _count(name: str, taken: dict[str, int]) -> str:
    """Returns `name` the first time, `name_1` the second."""
    taken[name] = taken.get(name, -1) + 1
    return f"{name}_{taken[name]}" if taken[name] else name


def check_module(name: str, module: Any) -> None:
    """Checks the module that a factory returned.

    Args:
      name: name of the module.
      module: object that was returned.

    Raises:
      TypeError: TensorFlow cannot track the object, or it is an optimizer whose
        learning rate is a layer.
    """
    if not is_trackable_module(module):
        raise RefusedTypeError(
            f"the factory of module {name!r} returned {kind_of(module)}, which "
            "TensorFlow cannot track: return a Keras model, layer or optimizer, a "
            "tf.Module, a tf.Variable or a lookup table."
        )
    # Keras takes any callable for a rate, and calls it without arguments in the first
    # step: a layer would fail there.
    rate = given_rate(module)
    if isinstance(module, keras.optimizers.Optimizer) and isinstance(
        rate, keras.layers.Layer
    ):
        raise RefusedTypeError(
            f"module {name!r}: the learning rate of {type(module).__name__} is the "
            f"layer {type(rate).__name__}: write a number, such as "
            f"{type(module).__name__}.learning_rate = 0.01, or a schedule."
        )


def given_rate(optimizer: Any) -> Any:
    """Returns an optimizer's learning rate as it was given: a variable or a schedule.

    Keras has no public way to it: `learning_rate` is a schedule's value.
    """
    return getattr(optimizer, "_learning_rate", None)
