"""Each picture of the pages has committed numbers, and a module that measures and draws it."""

import ast
import re

from conftest import ROOT

PICTURES = ROOT / "docs/pictures"
NOT_PICTURES = {"__init__", "__main__", "programs", "processes", "style"}


def functions_of(path):
    return {each.name for each in ast.parse(path.read_text()).body if hasattr(each, "name")}


def test_each_picture_has_data_and_a_module():
    images = {path.stem for path in (ROOT / "docs/img").iterdir()}
    modules = {path.stem: functions_of(path) for path in PICTURES.glob("*.py")}
    drawn = {name for name, found in modules.items() if {"measure", "draw"} <= found}
    assert drawn == modules.keys() - NOT_PICTURES
    assert drawn == images == {path.stem for path in (PICTURES / "data").iterdir()}


def test_the_pages_name_pictures_that_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name for page in pages for name in re.findall(r"\bimg/(\w+\.(?:svg|png))", page.read_text())
    }
    assert named <= {path.name for path in (ROOT / "docs/img").iterdir()}
