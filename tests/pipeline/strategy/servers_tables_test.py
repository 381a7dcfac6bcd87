"""Lookup tables with parameter servers: each worker has its own, or it is refused."""

import json
import types

import pytest
import tensorflow as tf

from pipeline.loop import coordinated_loop
from tests import clusters


def test_tables_work_on_finite_data_or_are_refused(tmp_path):
    clusters.run_forked("servers_tables", [str(tmp_path)], 240)
    codes = json.loads((tmp_path / "codes.json").read_text())
    log = (tmp_path / "chief_0.log").read_text()[-3000:]
    assert codes["codes"]["chief 0"] == 0, log
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["module"]["ids"] == 60
    assert found["module"]["global_step"] == 10
    assert "write Estimator(modules={'table': make_table" in found["outside"]
    assert "write ids = table.lookup(words) before it" in found["in_branch"]


def test_what_workers_do_not_reach_is_refused():
    """Where it fails after an upgrade: `FuncGraph.captures` is named otherwise."""
    variable = tf.Variable(1.0)

    @tf.function(autograph=False)
    def uses():
        coordinated_loop.check_captures(tf.compat.v1.get_default_graph())
        return variable + 1

    graph = uses.get_concrete_function().graph
    with pytest.raises(ValueError, match="none of its modules, and was made where"):
        coordinated_loop.check_captures(graph)
    coordinated_loop.check_captures(types.SimpleNamespace(captures=[]))
