"""Another input of a model_dir, and exporters, with parameter servers."""

import json

from tests import clusters


def test_another_input_and_exporters(tmp_path):
    clusters.run_forked("servers_inputs", [str(tmp_path)], 240)
    log = (tmp_path / "chief_0.log").read_text()
    assert (tmp_path / "found.json").exists(), log[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for way in ("auto", "skip", "error"):
        assert found[way][0][1] == 4
    whole = sum(range(100, 140))
    assert found["auto"][1] == [whole, 40]
    ids, examples = found["skip"][1]
    # Each worker leaves out as many of its batches as it had read of the others.
    assert examples == 36 and ids == whole - found["skip"][0][0] - 4 * 100
    assert "Write RunConfig(changed_input='anew')" in found["error"][1]
    # The same data go on.
    ids, examples = (a + b for a, b in zip(*found["same"], strict=True))
    assert (ids, examples) == (sum(range(40)), 40)
    exports = {"latest": 3, "best": 1, "final": 1}
    assert found["exported"] == {"step": 30, "exports": exports}
