"""The site: each page is in the navigation, each public name and flag in `docs/api.md`."""

import importlib
import re
import types

import pytest
from conftest import ROOT

import gin_estimator as ge
from gin_estimator import inputs, launch, main, models, sweep

API = (ROOT / "docs/api.md").read_text(encoding="utf-8")


def test_the_navigation_has_each_page_once():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- .+: (\S+\.md)$", config, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_each_public_name_is_in_one_group_of_the_api():
    groups = [
        re.findall(r"^::: gin_estimator\.(?!cli)(?:\w+\.)*(\w+)$", part, re.M)
        for part in API.split("\n## ")
    ]
    found = [name for group in groups for name in group]
    assert sorted(found) == sorted([*ge.__all__, "models", "inputs"])
    assert sum(bool(group) for group in groups) == 9  # Seven, and two for gin files.


@pytest.mark.parametrize(
    "package",
    [models, inputs, *(v for n in ge.__all__ if isinstance(v := getattr(ge, n), types.ModuleType))],
    ids=lambda package: package.__name__.rpartition(".")[2],
)
def test_the_api_has_each_public_name_of_a_package(package):
    path = package.__name__.rpartition(".")[2]
    [members] = re.findall(rf"^::: gin_estimator\.{path}\n.*?\[(.*?)\]", API, re.M | re.S)
    source = importlib.util.find_spec(package.__name__).loader.get_source(package.__name__)
    public = re.findall(r"\bas (\w+)$", source, re.M) or [
        name for name in re.findall(r"^class (\w+)", source, re.M) if name not in ge.__all__
    ]
    assert sorted(re.findall(r"\w+", members)) == sorted(public)


def test_the_api_has_the_help_of_each_command(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")

    def printed(program, name):
        capsys.readouterr()
        try:
            program.main([name, "--help"])
        except SystemExit as end:
            assert not end.code
        return "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().splitlines())

    blocks = re.findall(r"^```text\n(.*?)\n```$", API, re.M | re.S)
    assert blocks == [
        printed(main, "gin-estimator"),
        printed(launch, "launch"),
        printed(sweep, "sweep"),
    ]
