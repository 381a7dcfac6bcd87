"""Anything at all as TF_CONFIG, RunConfig or gin: taken, or refused in our words.

The same garbage in each run; GARBAGE=new has other garbage.
"""

import os

import hypothesis
import pytest
from hypothesis import strategies as st

import pipeline as ge
from pipeline.cluster import tf_config
from pipeline.command import gin_config
from tests import clusters

pytestmark = pytest.mark.usefixtures("fresh_gin")

SAME = os.environ.get("GARBAGE") != "new"
TEXT = st.text(max_size=30)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = list(ge.RunConfig.__dataclass_fields__)
DIGITS = (clusters.ROOT / "gin" / "digits.gin").read_text(encoding="utf-8").splitlines()
PIECES = ["@", "%", "=", "(", ")", "[", "]", "'", '"', "{", ".", "/", "\\", "\0", "\t"]


@hypothesis.given(text=TEXT | st.binary(max_size=20).map(lambda b: b.decode("latin-1")))
@hypothesis.example(text="[" * 100_000)
@hypothesis.example(text="9" * 5000)
@hypothesis.settings(max_examples=100, deadline=None, derandomize=SAME)
def test_any_tf_config_is_read_or_refused(text):
    try:
        tf_config.parse_tf_config(text)
    except ValueError as error:
        assert str(error).startswith("TF_CONFIG")


@hypothesis.given(field=st.sampled_from(FIELDS), value=ANYTHING)
@hypothesis.settings(max_examples=200, deadline=None, derandomize=SAME)
def test_any_field_of_a_run_config_is_taken_or_refused(field, value):
    try:
        ge.RunConfig(**{field: value})
    except ValueError as error:
        assert field in str(error)


@st.composite
def mutated(draw):
    """Lines of digits.gin, with some cut, doubled, swapped or written over."""
    lines = list(DIGITS)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        here = draw(st.integers(0, len(line)))
        there = draw(st.integers(here, min(len(line), here + 5)))
        piece = draw(st.sampled_from(PIECES) | st.text(max_size=4))
        change = draw(st.integers(0, 3))
        if change == 0:
            lines[at] = line[:here] + piece + line[there:]
        elif change == 1:
            lines[at] = line[:here]
        elif change == 2:
            lines.insert(draw(st.integers(0, len(lines))), line)
        else:
            del lines[at]
            lines = lines or [""]
    return "\n".join(lines)


def parse(files, params=()):
    try:
        gin_config.parse(files, params)
    except gin_config.ConfigError as error:
        assert str(error)


def write(folder, text):
    path = folder / "any.gin"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return [str(path)]


def few(test):
    """Fewer examples, as gin takes its time; all in one folder."""
    return hypothesis.settings(
        max_examples=60,
        deadline=None,
        derandomize=SAME,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    )(test)


def of_any_text(test):
    """Also of what crashed gin once."""
    for text in ("A = {[]: 1}", "A = " + "[" * 1000 + "]" * 1000):
        test = hypothesis.example(text=text)(test)
    text = TEXT | st.lists(st.sampled_from(PIECES) | TEXT).map("".join)
    return few(hypothesis.given(text=text)(test))


@hypothesis.given(text=mutated())
@few
def test_any_change_of_a_gin_file_is_read_or_refused(text, tmp_path):
    parse(write(tmp_path, text))


@of_any_text
def test_any_text_is_read_as_gin_or_refused(text, tmp_path):
    parse(write(tmp_path, text))


@of_any_text
def test_any_binding_of_the_command_line_is_read_or_refused(text):
    parse([], [text])
