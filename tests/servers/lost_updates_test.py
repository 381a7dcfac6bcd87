"""The table of docs/evidence.md: updates that optimizers lose."""

import re

import pytest

from tasks import PROGRAMS, ROOT, servers

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workers", [2, 3])
def test_the_optimizers_of_the_page_lose_no_update(tmp_path, workers):
    """One that reads and assigns does lose some, so that a loss would be seen."""
    page = (ROOT / "docs/evidence.md").read_text()
    table = page.partition("## Lost updates")[2].partition("\n## ")[0]
    program = PROGRAMS / "lost_updates.py"
    with servers(tmp_path, program, tmp_path / "model", workers=workers) as cluster:
        assert set(cluster.codes().values()) == {0}, cluster["chief 0"].output
        assert cluster.result("safe") == dict.fromkeys(
            re.findall(r"\| (.+) \| 0 \| 0 \|", table), 0
        )
        assert all(cluster.result("allowed").values())
