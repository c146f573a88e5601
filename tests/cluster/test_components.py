"""The cache key of a binary changes with what changes the binary, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from local_cluster import builder, components, paths

CACHED = (components.versions, components.go_version, components.build_inputs)


def clear() -> None:
    for function in CACHED:
        function.cache_clear()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of the Go module that a test may edit."""
    copy = tmp_path / "module"
    shutil.copytree(components.MODULE_DIR, copy)
    monkeypatch.setattr(components, "MODULE_DIR", copy)
    clear()
    yield copy
    clear()


def keys() -> dict[str, str]:
    clear()
    return {component.name: component.key for component in components.COMPONENTS}


def test_key_is_stable_and_holds_the_version(module: Path) -> None:
    assert keys() == keys()
    assert keys()["kube-apiserver"].startswith(components.versions()["k8s.io/kubernetes"].removeprefix("v") + "-")


def test_another_module_version_changes_every_key(module: Path) -> None:
    before = keys()
    go_mod = module / "go.mod"
    text = go_mod.read_text()
    version = components.versions()["go.etcd.io/etcd/server/v3"]
    go_mod.write_text(text.replace(f"go.etcd.io/etcd/server/v3 {version}", "go.etcd.io/etcd/server/v3 v3.7.99"))
    after = keys()
    assert after["etcd"].startswith("3.7.99-")
    # One build resolves all versions together: a changed requirement may reach any of them.
    assert all(before[name] != after[name] for name in before)


def test_other_flags_change_every_key(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys()
    monkeypatch.setattr(components, "COMPILE_FLAGS", (*components.COMPILE_FLAGS, "-race"))
    after = keys()
    assert all(before[name] != after[name] for name in before)


def test_own_source_changes_its_own_key_alone(module: Path) -> None:
    before = keys()
    source = module / "storage" / "main.go"
    source.write_text(source.read_text() + "\n// changed\n")
    after = keys()
    assert {name for name in before if before[name] != after[name]} == {"storage"}


def test_every_component_has_its_module_in_go_mod() -> None:
    for component in components.COMPONENTS:
        assert component.version.startswith("v"), component.name
        if component.package.startswith("./"):
            assert (components.MODULE_DIR / component.package / "main.go").is_file()
        else:
            assert component.package in (components.MODULE_DIR / "go.mod").read_text()


def test_a_binary_that_is_not_built_names_the_repair(cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"kubectl is not built yet.*python3 -m local_cluster build"):
        paths.binary("kubectl")
    assert {component.name for component in builder.missing(["tools"])} == {"kubectl", "helm"}


def test_building_without_disk_names_the_place_and_the_setting(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "NEEDED_FREE_GB", 10**9)
    with pytest.raises(SystemExit, match=r"needs 1000000000 GB free in .*GRPO_CACHE_DIR"):
        builder.build()
