"""What `import pipeline as ge` gives, to Python and to editors and type checkers."""

import ast
import pathlib
import typing

import pytest

import pipeline
from pipeline.strategy import peers

TREE = ast.parse(pathlib.Path(pipeline.__file__).read_text(encoding="utf-8"))


def imported_for_type_checkers():
    """(file, name) of each."""
    (block,) = [
        node
        for node in TREE.body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    ]
    for node in block.body:
        for alias in node.names:
            yield node.module.removeprefix("pipeline."), alias.name


def assigned(name):
    (value,) = [
        node.value
        for node in TREE.body
        if isinstance(node, ast.Assign) and node.targets[0].id == name
    ]
    return value


def test_type_checkers_know_every_public_name():
    expected = {(file, name) for name, file in pipeline._FILES.items()}
    assert set(imported_for_type_checkers()) == expected
    # They read the list of names as text, and do not run it.
    assert ast.literal_eval(assigned("__all__")) == list(pipeline._FILES)
    assert (pathlib.Path(pipeline.__file__).parent / "py.typed").exists()


def test_every_public_name_is_there():
    for name in pipeline.__all__:
        found = getattr(pipeline, name)
        assert found.__name__ == name
    assert set(pipeline.__all__) <= set(dir(pipeline))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("RunConfg", "has no attribute 'RunConfg'. Did you mean RunConfig"),
        ("CheckpointSaverListener", "'CheckpointSaverListener': write SavingListener."),
        ("stop_if_higher_hook", "early_stopping=StopIfHigher('accuracy', 0.9))."),
        ("xyzzy", "has no attribute 'xyzzy'$"),
    ],
)
def test_a_name_that_is_none_gets_the_one_that_is_meant(name, said):
    with pytest.raises(
        AttributeError, match=said.replace("(", r"\(").replace(")", ".")
    ):
        getattr(pipeline, name)


def test_a_decorated_method_keeps_its_signature():
    """Else a checker lets any arguments pass."""
    hints = typing.get_type_hints(peers.watches)
    assert hints["return"] == hints["method"]
