"""Tests of digests of functions and what they see."""

import argparse
import array
import collections
import dataclasses
import datetime
import enum
import importlib.util
import logging
import math
import pathlib
import re
import sys

import numpy as np
import pandas as pd
import pytest
from absl import flags

from pipeline.feed import code_digest


class Slotted:
    __slots__ = ("_start",)

    def __init__(self, start):
        self._start = start


class Split(enum.Enum):
    TRAIN = 1
    TEST = 2


def closing_over(value):
    return lambda: value


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pathlib.Path("data/a"), pathlib.Path("data/b")),
        (np.int64(1), np.int64(2)),
        (range(3), range(4)),
        (Slotted(1), Slotted(2)),
        (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
        (math.sin, math.cos),
        (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
        (collections.deque([1, 2]), collections.deque([1, 3])),
        ({"a": 1}.values(), {"a": 2}.values()),
        ({Split.TRAIN}, {Split.TEST}),
        (bytearray(b"a"), bytearray(b"b")),
        (array.array("i", [1]), array.array("i", [2])),
        (pd.DataFrame({"a": [1], "b": "x"}), pd.DataFrame({"a": [1], "b": "y"})),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]}, index=[7])),
        (pd.Series([1, None], dtype="Int64"), pd.Series([2, None], dtype="Int64")),
        (pd.Series(["x", "y"], dtype="category"), pd.Series(["y", "x"])),
        (pd.Index(["a"]), pd.Index(["b"])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_function_is_all_kinds_of_values_that_it_sees(before, now):
    one, same, other = (
        code_digest.of_function(closing_over(each)) for each in (before, before, now)
    )
    assert one == same != other


def flag_values(**values):
    made = flags.FlagValues()
    for name, value in values.items():
        flags.DEFINE_integer(name, value, "A number.", flag_values=made)
    made.mark_as_parsed()
    return made


Settings = dataclasses.make_dataclass("Settings", ["rows", "steps"], slots=True)


@pytest.mark.parametrize("kind", [argparse.Namespace, flag_values, Settings])
def test_settings_that_the_code_does_not_read_are_in_no_digest(kind):
    def reading(settings):
        return lambda: [settings.rows for _ in range(3)]

    def handing_on(settings):
        return lambda: repr(settings)

    def digests(make):
        given = ((3, 10), (3, 10), (3, 20), (4, 10))
        settings = [kind(rows=rows, steps=steps) for rows, steps in given]
        return [code_digest.of_function(make(each)) for each in settings]

    one, same, other_steps, other_rows = digests(reading)
    assert one == same == other_steps != other_rows
    one, same, other_steps, other_rows = digests(handing_on)
    assert one == same
    assert len({one, other_steps, other_rows}) == 3


def test_a_flag_is_its_value_in_a_digest():
    def rows_of(values):
        holder = flags.DEFINE_integer("rows", 3, "A number.", flag_values=values)
        return lambda: holder.value

    unparsed, parsed, of_more = (flags.FlagValues() for _ in range(3))
    flags.DEFINE_integer("steps", 3, "A number.", flag_values=of_more)
    functions = [rows_of(each) for each in (unparsed, parsed, of_more)]
    parsed(["main", "--rows=3"])
    of_more(["main", "--rows=3"])
    assert len({code_digest.of_function(each) for each in functions}) == 1
    of_more(["main", "--rows=4"])
    one, other = (code_digest.of_function(each) for each in functions[1:])
    assert one != other


def test_what_was_logged_is_in_no_digest():
    logger = logging.getLogger("tests.fingerprint")
    before = code_digest.of_function(closing_over(logger))
    logger.isEnabledFor(logging.DEBUG)  # Is remembered.
    assert code_digest.of_function(closing_over(logger)) == before


def test_addresses_are_in_no_digest():
    def another():
        def here():
            return 1

        return here

    functions = another(), another()
    held = [np.array([each, [each], "a"], dtype=object) for each in functions]
    assert code_digest.of_array(held[0]) == code_digest.of_array(held[1])
    one, other = (code_digest.of_function(closing_over({each})) for each in functions)
    assert one == other


READERS = """
import functools

SIZE, STEPS = 3, 100

def scaled(x):
    return 2 * x

class Settings:
    size, steps = 4, 100

class Base:
    factor = 5
    def first(self):
        return 0
    @staticmethod
    def half(x):
        return x / 2
    @functools.cached_property
    def last(self):
        return 7
    def train(self):
        return "not read"

class Rows(Base):
    def __init__(self):
        self.skipped = int(1)
    def __call__(self):
        yield from range(self.first(), self.last, self.factor)
        yield self.half(8)
"""
# What a line is replaced by, and whose generators then read something else.
CHANGES = {
    ("SIZE, STEPS = 3,", "SIZE, STEPS = 9,"): {"module"},
    ("2 * x", "3 * x"): {"module"},
    ("size, steps = 4,", "size, steps = 9,"): {"settings"},
    ("factor = 5", "factor = 9"): {"object", "made"},
    ("return 0", "return 9"): {"object", "made"},
    ("x / 2", "x / 9"): {"object", "made"},
    ("return 7", "return 9"): {"object", "made"},
    ("yield self", "yield 9 + self"): {"object", "made"},
    ("int(1)", "abs(1)"): {"made"},
    ("3, 100", "3, 200"): set(),
    ("4, 100", "4, 200"): set(),
    ("not read", "read by nobody"): set(),
}


@pytest.mark.parametrize("change", CHANGES, ids=" -> ".join)
def test_what_code_reads_of_classes_and_modules_is_in_its_digest(
    change, tmp_path, monkeypatch
):
    def digests(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        path = tmp_path / f"{name}.py"
        spec = importlib.util.spec_from_file_location("readers", path)
        readers = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "readers", readers)
        spec.loader.exec_module(readers)
        settings, kind = readers.Settings, readers.Rows
        reading = {
            "module": lambda: readers.scaled(readers.SIZE),
            "settings": lambda: settings.size,
            "object": kind(),
            "made": lambda: kind()(),
        }
        return {key: code_digest.of_function(each) for key, each in reading.items()}

    before = digests("before", READERS)
    assert digests("same", READERS) == before
    now = digests("now", READERS.replace(*change))
    assert {key for key in now if now[key] != before[key]} == CHANGES[change]
