"""The CDI devices of a host: which files count, and what `gpulatch cdi list` and `generate` say of them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from drivers.samples import nvlink_host

from runtime_wrapper import cdi_registry
from runtime_wrapper.errors import CdiError
from runtime_wrapper.operate import cdi, cdi_file, probing

pytestmark = pytest.mark.needs("root")


def text(*names: str, kind: str = "vendor.com/nic", value: str = "1") -> str:
    devices = [{"name": name, "containerEdits": {"env": [f"{name.upper()}={value}"]}} for name in names]
    return json.dumps({"cdiVersion": "0.3.0", "kind": kind, "devices": devices})


class Folders:
    """The two CDI directories of a host."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.run = folder / "etc", folder / "run"
        self.paths = (str(self.etc), str(self.run))
        for path in (self.etc, self.run):
            path.mkdir()

    def read(self) -> cdi_registry.Registry:
        return cdi_registry.read(self.paths)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    found = Folders(tmp_path)
    monkeypatch.setattr(cdi_registry, "DIRECTORIES", found.paths)
    return found


def test_a_host_without_the_directories_has_no_devices(tmp_path: Path) -> None:
    found = cdi_registry.read([str(tmp_path / "none")])
    assert (found.devices, found.problems) == ({}, {})


def test_a_link_a_strangers_file_and_one_that_others_can_change_do_not_count(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(text("a"))
    (folders.etc / "link.json").symlink_to(tmp_path / "real.json")
    for name, mode in (("open.json", 0o666), ("good.json", 0o644)):
        (folders.etc / name).write_text(text(name[0]))
        (folders.etc / name).chmod(mode)
    (folders.run / "folder.json").mkdir()
    found = folders.read()
    assert list(found.devices) == ["vendor.com/nic=g"]
    bad = [folders.etc / "link.json", folders.etc / "open.json", folders.run / "folder.json"]
    assert sorted(found.problems) == [str(path) for path in bad]


def test_a_directory_that_others_can_change_does_not_count(folders: Folders) -> None:
    (folders.run / "a.json").write_text(text("a"))
    folders.run.chmod(0o777)
    found = folders.read()
    assert (found.devices, list(found.problems)) == ({}, [str(folders.run)])


def test_a_device_that_two_files_of_the_lower_directory_have_is_lost_in_the_higher_too(folders: Folders) -> None:
    for path in (folders.etc / "a.json", folders.etc / "b.json", folders.run / "c.json"):
        path.write_text(text("x", path.stem))
    assert sorted(folders.read().devices) == [f"vendor.com/nic={name}" for name in "abc"]


def test_the_same_name_of_another_kind_is_another_device(folders: Folders) -> None:
    (folders.etc / "a.json").write_text(text("a"))
    (folders.etc / "b.json").write_text(text("a", kind="vendor.com/gpu"))
    assert (len(folders.read().devices), folders.read().problems) == (2, {})


def test_yaml_is_named_where_it_is_not_read(folders: Folders) -> None:
    (folders.etc / "a.yaml").write_text(text("a"))
    (problem,) = folders.read().problems[str(folders.etc / "a.yaml")]
    assert "YAML" in str(problem)
    assert list(cdi_file.registry(folders.paths).devices) == ["vendor.com/nic=a"]


@pytest.mark.parametrize("content", ["{", "a: [", "a: 1\na: 2", "- 1\n-2", "2024-99-99", "? {a: 1}\n: 2", "&a [*a]"])
def test_a_file_that_is_no_yaml_or_no_spec_is_a_problem_and_no_crash(folders: Folders, content: str) -> None:
    (folders.etc / "a.yaml").write_text(content)
    assert list(cdi_file.registry(folders.paths).problems) == [str(folders.etc / "a.yaml")]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cdi.cdi, [*arguments], env={"COLUMNS": "300"})


def test_list_shows_each_device_with_its_file(folders: Folders) -> None:
    (folders.etc / "a.json").write_text(text("a", "b"))
    (folders.run / "a.yaml").write_text(text("b", value="2"))
    result = call("list")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if "=" in line}
    assert lines == {
        "vendor.com/nic=a": [str(folders.etc / "a.json"), "0.3.0", "A=1"],
        "vendor.com/nic=b": [str(folders.run / "a.yaml"), "0.3.0", "B=2"],
    }


def test_list_names_what_is_wrong_and_shows_the_rest(folders: Folders) -> None:
    (folders.etc / "a.json").write_text(text("a", "b"))
    (folders.etc / "b.json").write_text(text("b"))
    (folders.etc / "c.json").write_text("{")
    result = call("list")
    assert result.exit_code == 1
    assert "vendor.com/nic=a" in result.stdout
    assert "vendor.com/nic=b" not in result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("gpulatch: CDI spec, ") and line.endswith("(GL-7002)") for line in lines)


def test_list_says_that_there_is_none(folders: Folders) -> None:
    result = call("list")
    assert (result.exit_code, result.stdout) == (0, f"No CDI device in {folders.etc} or {folders.run}\n")


def test_generate_refuses_a_device_that_another_file_of_the_directory_has(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "refresh", lambda: nvlink_host(2))
    target, old = folders.etc / "gpulatch.io-gpu.json", folders.etc / "by-hand.yaml"
    old.write_text(text("any-2", kind="gpulatch.io/gpu"))
    error = call("generate", "--output", str(target)).exception
    assert isinstance(error, CdiError)
    assert f"{old} has gpulatch.io/gpu=any-2 too" in str(error)
    assert not target.exists()
    old.write_text(text("any-2", kind="vendor.com/gpu"))
    assert call("generate", "--output", str(target)).exit_code == 0
    assert call("generate", "--output", str(target)).exit_code == 0
