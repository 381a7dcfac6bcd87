"""Modules that are imported when something of them is asked for."""

import importlib
import sys

import pytest

from pipeline.process import import_hook, later

IMPORTER = """
try:
    import rarely_needed
except ImportError:
    rarely_needed = None
KINDS = (rarely_needed.Kind,) if rarely_needed else ()
"""


@pytest.fixture
def importer(tmp_path, monkeypatch):
    """Name of a module that imports one which is left for later."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(later, "_LATER", {"rarely_needed": ("Kind",)})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "importer.py").write_text(IMPORTER)
    (tmp_path / "rarely_needed.py").write_text("class Kind: pass\nnumber = 3\n")
    for name in ("importer", "rarely_needed"):
        # Forgotten again after the test.
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    import_hook.surround(("importer",), later._left_out)
    return "importer"


def test_it_is_imported_when_it_is_asked_for(importer):
    made = importlib.import_module(importer)
    stand_in, (kind,) = made.rarely_needed, made.KINDS
    assert "rarely_needed" not in sys.modules
    assert not isinstance(3, kind)
    assert "rarely_needed" not in sys.modules
    assert stand_in.number == 3
    own = importlib.import_module("rarely_needed")
    assert own is sys.modules["rarely_needed"] is not stand_in
    assert stand_in.Kind is own.Kind
    assert isinstance(own.Kind(), kind)
    assert not isinstance(3, kind)


def test_who_looks_through_all_modules_imports_none(importer):
    with later._left_out():
        stand_in = importlib.import_module("rarely_needed")
        assert not hasattr(stand_in, "__file__")
        assert not isinstance(3, stand_in.Kind)
        assert sys.modules["rarely_needed"] is stand_in
    assert "rarely_needed" not in sys.modules


def test_another_name_is_asked_for_at_once(importer):
    with later._left_out():
        assert importlib.import_module("rarely_needed").number == 3
    assert sys.modules["rarely_needed"].number == 3


def test_one_that_is_not_installed_is_not_there(importer, tmp_path):
    (tmp_path / "rarely_needed.py").unlink()
    importlib.invalidate_caches()
    assert importlib.import_module(importer).rarely_needed is None
    assert later.module("rarely_needed.part") is None


def test_a_module_of_ones_own_choice(importer):
    stand_in = later.module("rarely_needed")
    assert "rarely_needed" not in sys.modules
    assert stand_in.number == 3
    with pytest.raises(AttributeError, match="has no attribute 'letter'"):
        _ = stand_in.letter


def test_a_hook_is_there_once_and_until_it_was_used(importer):
    hooks = [f for f in sys.meta_path if isinstance(f, import_hook._Hook)]
    import_hook.surround(("importer",), later._left_out)
    assert [f for f in sys.meta_path if isinstance(f, import_hook._Hook)] == hooks
    importlib.import_module(importer)
    import_hook.surround(("importer",), later._left_out)
    assert [f for f in sys.meta_path if isinstance(f, import_hook._Hook)] == hooks[1:]
