"""What `--search` accepts, and what it answers to what it does not."""

import pytest

from pipeline.process.refusals import RefusedValueError
from pipeline.trials import search


@pytest.mark.parametrize(
    ("text", "ends", "bindings"),
    [
        ("RATE=log(1e-4, 1e-1)", (1e-4, 0.1), ["RATE=0.0001", "RATE=0.1"]),
        ("a.b=uniform(0,1)", (0.0, 1.0), ["a.b=0.0", "a.b=1.0"]),
        ("x = uniform( -1, 1 , 0.5 )", (-1.0, 1.0), ["x=-1.0", "x=1.0"]),
        ("s/f.n=int(1,8)", (1, 8), ["s/f.n=1", "s/f.n=8"]),
        ("n=log_int(1,1024)", (1, 1024), ["n=1", "n=1024"]),
        ("f=choice(@Adam, @SGD)", ("@Adam", "@SGD"), ["f=@Adam", "f=@SGD"]),
        (
            "f=choice((16, 32), 'a,b', [\"(\"], 1,)",
            ("(16, 32)", "'a,b'", '["("]', "1"),
            ["f=(16, 32)", "f='a,b'", 'f=["("]', "f=1"],
        ),
    ],
)
def test_what_is_searched(text, ends, bindings):
    (found,) = search.read([text])
    assert tuple(found.ends()) == ends
    assert [found.binding(value) for value in ends] == bindings
    # The text that is written down says the same.
    assert search.read([str(found)]) == (found,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("RATE", "write NAME=KIND(VALUES), such as --search="),
        ("RATE=0.1", "write NAME=KIND(VALUES)"),
        ("RATE=loguniform(1, 2)", "there is no loguniform(...). Did you mean log?"),
        ("RATE=unifrom(1, 2)", "there is no unifrom(...). Did you mean uniform?"),
        ("RATE=uniform(1)", 'has 1 numbers: write --search="RATE=uniform(0, 0.5)'),
        ("RATE=log(1, 2, 3)", "has 3 numbers"),
        ("RATE=uniform(1, nan)", "write --search="),
        ("RATE=uniform(1, a)", "'a' is no number; write"),
        ("RATE=int(1, 2.5)", "'2.5' is no whole number; write --search="),
        ("RATE=uniform(2, 1)", "has no values: write the lower bound first"),
        ("RATE=uniform(1, 2, 5)", "has no values"),
        ("RATE=int(1, 5, 0)", "has no values"),
        ("RATE=log(0, 1)", "0.0 has no logarithm: write a lower bound above 0"),
        ("RATE=log_int(0, 8)", "0 has no logarithm"),
        ("RATE=choice(1)", "write at least two values"),
        ("RATE=choice(1, 1)", "each of them once"),
        ("RATE=choice(1,, 2)", "write at least two values"),
    ],
)
def test_what_is_not(text, says):
    with pytest.raises(RefusedValueError) as caught:
        search.read([text])
    assert says in str(caught.value)
    assert f"--search={text}" in str(caught.value)


def test_a_name_is_searched_once():
    with pytest.raises(RefusedValueError, match="--search names A twice: write one of"):
        search.read(["A=log(1, 2)", "A=choice(1, 2)"])


def test_all_values_of_a_grid():
    texts = ["a=choice(x, y)", "b=int(1, 3)", "c=int(2, 7, 2)", "d=uniform(0, 1, 0.5)"]
    found = search.read(texts)
    assert [tuple(each.all()) for each in found] == [
        ("x", "y"),
        (1, 2, 3),
        (2, 4, 6),
        (0.0, 0.5, 1.0),
    ]
    for text in ("a=uniform(0, 1)", "a=log(1, 2)", "a=int(1, 5000)", "a=log_int(1, 9)"):
        with pytest.raises(RefusedValueError, match="too many values for --sampler"):
            search.read([text])[0].all()
