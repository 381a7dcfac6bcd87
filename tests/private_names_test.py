"""Names that others keep to themselves: each is listed, with why and a test."""

import ast

import pytest

from tests.sources import FILES, ROOT, ids, imports, tree

# What has no public way: (file, name) -> why, and the test that breaks when it goes.
PRIVATE = {
    ("keras_losses", "_keras_mask"): (
        "Keras' losses read a sequence's mask where layers left it",
        "keras_models_test.py::test_loss_and_metrics_are_those_of_evaluate",
    ),
    ("coordination", "tensorflow.python.eager.context"): (
        "tf.distribute sets no heartbeat timeout",
        "coordination_test.py::test_the_heartbeat_is_set",
    ),
    ("batch_sums", "_get_function"): (
        "a graph shows no body of a function that it calls",
        "trace_checks_test.py::test_a_sum_over_the_batch_is_said",
    ),
    ("replica_means", "sys.modules"): (
        "Keras and TensorFlow divide mean losses by the number of replicas",
        "replica_means_test.py::test_only_inside_are_they_means_over_a_replica",
    ),
    ("updates", "_all_reduce_sum_gradients"): (
        "Keras adds up gradients that are all-reduced already",
        "steps_test.py::test_keras_still_reduces_where_we_turn_it_off",
    ),
    ("row_update", "_get_variable_index"): (
        "Keras tells its formulas by it where a variable's slots are",
        "optimizers_test.py::test_rows_move_as_whole_tables_do",
    ),
    ("optimizers", "_get_variable_index"): (
        "Keras tells its formulas by it where a variable's slots are",
        "optimizers_test.py::test_rows_move_as_whole_tables_do",
    ),
    ("optimizers", "_clip_gradients"): (
        "Keras makes rows dense where it clips them",
        "optimizers_test.py::test_a_step_reads_and_makes_no_whole_table",
    ),
    ("optimizers", "_apply_weight_decay"): (
        "Keras decays all rows",
        "optimizers_test.py::test_lazy_rows_move_as_by_the_dense_gradient_and_others_stay",
    ),
    ("optimizers", "_use_weight_decay"): (
        "Keras does not say publicly which variables decay",
        "optimizers_test.py::test_lazy_rows_move_as_by_the_dense_gradient_and_others_stay",
    ),
    ("variables", "_layers"): (
        "Keras lists the sublayers of models alone",
        "variables_test.py::test_keras_still_keeps_sublayers_where_the_walk_looks",
    ),
    ("variables", "_learning_rate"): (
        "Keras hands out the rate's value, not what it was given",
        "bad_value_test.py::test_a_layer_as_a_learning_rate",
    ),
    ("gin_registry", "_REGISTRY"): (
        "gin lists no configurables",
        "gin_config_test.py::test_the_registry_that_gin_does_not_list_publicly",
    ),
    ("fingerprint", "_func"): (
        "a dataset's graph holds no Python function that it calls",
        "fingerprint_test.py::test_what_differs_is_said",
    ),
}
# Public in spite of their names.
NOT_PRIVATE = {"_exit", "_fields", "_replace", "_asdict"}


def own_names(path):
    """What a file itself calls by a name that begins with an underscore."""
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif is_of_self(node) and isinstance(node.ctx, ast.Store):
            yield node.attr


def is_of_self(node):
    return isinstance(node, ast.Attribute) and (
        getattr(node.value, "id", "") in ("self", "cls")
    )


def foreign_names(path):
    """Private names that a file takes of modules and objects of others."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and not is_of_self(node):
            yield node.attr
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            yield node.args[1].value
        elif isinstance(node, ast.Subscript) and "__module__" in ast.unparse(
            node.slice
        ):
            yield ast.unparse(node.value)  # A module that has no public name.
    prefixes = ("tensorflow.python", "keras.src", "tf_keras", "gin.config._")
    yield from (name for name in imports(path) if name.startswith(prefixes))


def is_private(name):
    inner = name.startswith("_") and not name.startswith("__")
    return inner or "." in name


@pytest.mark.parametrize("path", FILES, ids=ids(FILES))
def test_what_is_private_is_listed(path):
    assert private_names(path) == {name for file, name in PRIVATE if file == path.stem}
    text = path.read_text(encoding="utf-8")
    assert "keras.src" not in text
    assert "tf.python." not in text


def private_names(path):
    """What a file uses that others keep to themselves."""
    own = set(own_names(path)) | NOT_PRIVATE
    return {name for name in foreign_names(path) if is_private(name)} - own


def test_a_test_breaks_where_a_private_name_goes():
    for _, test in PRIVATE.values():
        file, _, name = test.partition("::")
        (found,) = (ROOT / "tests").rglob(file)
        assert f"def {name}(" in found.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "import keras\nkeras.Layer._tracker",
        "getattr(keras, '_x')",
        "from tensorflow.python.eager import context",
    ],
)
def test_a_private_name_is_found(text, tmp_path):
    path = tmp_path / "new.py"
    path.write_text(f"{text}\n")
    assert private_names(path)
