import os
from pathlib import Path

import pytest

from local_cluster import builder


@pytest.fixture
def needs_control_plane() -> None:
    if missing := builder.missing(["control-plane", "tools"]):
        pytest.fail(f"{missing[0].name} is not built: run `python3 -m local_cluster build`")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of this test's own."""
    monkeypatch.setenv("GRPO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.fail("this test builds a cluster on the machine: run it as root, or deselect it with -m 'not cluster'")
