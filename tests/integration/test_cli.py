"""The command line: what it prints, its exit codes, and that `resolve` changes nothing."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import DGX_A100, ROOT, Done, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")


def resolve(host: Host, bundle: Bundle, *more: str) -> Done:
    return host.gpulatch("resolve", "--config", str(bundle.config), *more)


def test_resolve_says_what_would_happen_and_changes_nothing(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:2")
    before = bundle.config.read_bytes()
    done = resolve(host, bundle, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [device["index"] for device in found["devices"]] == [0, 1]
    assert [device["minor"] for device in found["devices"]] == [1, 2]
    assert {device["kind"] for device in found["devices"]} == {"gpu"}
    assert (found["source"], found["request"], found["policy"]) == ("env GPULATCH_GPUS", "any:2", "exclusive")
    assert found["error"] is None
    assert bundle.config.read_bytes() == before
    assert not Path("/run/gpulatch").exists()


def test_resolve_and_create_agree(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "a").asking_for("any:3").path, "a").returncode == 0
    bundle = Bundle(tmp_path, "b").asking_for("any:2")
    foreseen = json.loads(resolve(host, bundle, "--json").stdout)
    printed = json.loads(resolve(host, bundle, "--print-spec").stdout)
    assert host.start(bundle.path, "b").returncode == 0
    assert [device["index"] for device in foreseen["devices"]] == host.held()["b"]
    written = bundle.on_disk()
    assert written["linux"] == printed["linux"]
    assert written["process"] == printed["process"]


@pytest.mark.parametrize(
    ("text", "code"), [("any:2", 0), ("none", 0), ("any:9", 1), ("rubbish", 1), ("void", 3), ("", 3)]
)
def test_the_exit_code_tells(host: Host, bundle: Bundle, text: str, code: int) -> None:
    bundle.asking_for(text)
    for arguments in ([], ["--json"]):
        done = resolve(host, bundle, "--machine", str(DGX_A100), *arguments)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert (found["error"] is not None) == (code == 1)
    if text == "none":
        assert found["devices"] == []
        assert found["policy"] == "shared"


def test_a_refusal_is_told_with_its_code(host: Host, bundle: Bundle) -> None:
    done = resolve(host, bundle.asking_for("any:9"), "--machine", str(DGX_A100), "--json")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "GL-4001"
    assert error["message"].startswith("gpulatch: 9 free GPUs")
    assert resolve(host, bundle, "--machine", str(DGX_A100)).stderr.strip() == error["message"]


def test_a_described_machine_has_an_empty_book_and_needs_no_driver(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "a").asking_for("any:8").path, "a").returncode == 0
    bundle = Bundle(tmp_path, "b").asking_for("any:8")
    assert resolve(host, bundle).returncode == 1
    assert resolve(host, bundle, "--machine", str(DGX_A100)).returncode == 0
    ledger = ["--ledger", "/run/gpulatch/ledger.json"]
    assert resolve(host, bundle, "--machine", str(DGX_A100), *ledger).returncode == 1
    host.run(["umount", "-l", "/proc/driver"])
    done = resolve(host, bundle, "--machine", str(DGX_A100), "--print-spec")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["linux"]["devices"]) == 8 + 3


def test_resolve_knows_a_live_container_by_its_id(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "a").asking_for("any:1").path, "a").returncode == 0
    done = resolve(host, bundle.asking_for("any:1"), "--id", "a")
    assert done.returncode == 1
    assert "already holds GPUs 0" in done.stderr
    assert resolve(host, bundle, "--id", "b").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["resolve"],
        ["resolve", "--config", "/nowhere"],
        ["resolve", "--config", "/etc/passwd", "--machine", "/nowhere"],
        ["resolve", "--config", "/etc/passwd", "--json", "--print-spec"],
        ["nonsense"],
        ["claims", "--nonsense"],
        ["release"],
    ],
)
def test_bad_usage_is_2(host: Host, arguments: list[str]) -> None:
    done = host.gpulatch(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "", '{"links": [["X", "NV99x"], ["SYS", "X"]]}', '{"links": 3}'])
def test_a_bad_machine_or_spec_file_is_one_line(host: Host, bundle: Bundle, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    bundle.asking_for("any:1")
    for arguments in (
        ["--config", str(bundle.config), "--machine", str(tmp_path / "bad.json")],
        ["--config", str(tmp_path / "bad.json"), "--machine", str(DGX_A100)],
    ):
        done = host.gpulatch("resolve", *arguments)
        assert done.returncode in (1, 3)
        assert done.returncode == 1 or "links" in text
        assert done.stderr.count("\n") <= 1
        assert "Traceback" not in done.stderr


def test_resolve_foresees_what_stands_against_a_start(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:1")
    assert "is not a valid id" in resolve(host, bundle, "--id", "a b/..").stderr
    Path("/etc/gpulatch/config.toml").write_text("[broken")
    done = resolve(host, bundle)
    assert done.returncode == 1
    assert "/etc/gpulatch/config.toml" in done.stderr
    assert resolve(host, bundle, "--machine", str(DGX_A100)).returncode == 0


def test_tables_fit_a_narrow_terminal(host: Host, bundle: Bundle) -> None:
    assert host.start(bundle.asking_for("any:2").path, "web-1").returncode == 0
    for command in ("probe", "claims", f"resolve --config {bundle.config}"):
        code = f"import sys; sys.argv[1:] = {command.split()!r}; from runtime_wrapper.operate.cli import main; main()"
        line = f"stty cols 80; exec {sys.executable} -c '{code.replace(chr(39), chr(34))}'"
        shown = host.run(["script", "-qec", line, "/dev/null"]).stdout
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        assert "NVIDIA A100-SXM4" in plain or command == "claims"
        assert max(len(row.rstrip()) for row in plain.splitlines()) <= 80
        for row in plain.splitlines():
            assert not re.search(r"GPU-[0-9a-f]{13}", row)


def test_resolve_reads_what_gpulatch_wrote_from_its_original(host: Host, bundle: Bundle) -> None:
    assert host.start(bundle.asking_for("any:1").path, "c1").returncode == 0
    found = json.loads(resolve(host, bundle, "--json").stdout)
    assert (found["source"], found["request"]) == ("env GPULATCH_GPUS", "any:1")
    assert [device["index"] for device in found["devices"]] == [1]


def test_probe_shows_the_gpus_keeps_the_snapshot_and_makes_missing_nodes(host: Host) -> None:
    os.unlink("/dev/nvidia3")
    done = host.gpulatch("probe")
    assert done.returncode == 0, done.stderr
    assert "NV12" in done.stdout
    assert os.stat("/dev/nvidia3").st_rdev == os.makedev(195, 3)
    assert os.readlink("/dev/char/195:3").endswith("nvidia3")
    snapshot = json.loads(Path("/run/gpulatch/inventory.json").read_text())
    found = json.loads(host.gpulatch("probe", "--json").stdout)
    assert found == snapshot["inventory"]
    assert [gpu["index"] for gpu in found["gpus"]] == list(range(8))


def test_probe_on_a_host_without_driver_is_one_line(host: Host) -> None:
    host.run(["umount", "-l", "/proc/driver"])
    done = host.gpulatch("probe")
    assert done.returncode == 1
    assert done.stderr.startswith("gpulatch: NVIDIA driver")
    assert done.stderr.count("\n") == 1


def test_claims_as_a_table_and_without_any(host: Host, bundle: Bundle) -> None:
    assert host.gpulatch("claims").stdout == "No container holds a GPU.\n"
    bundle.annotated("io.kubernetes.cri.container-name", "evil\x1b[31m\ncolour")
    assert host.start(bundle.asking_for("any:2").path, "c1").returncode == 0
    done = host.gpulatch("claims")
    assert "0,1" in done.stdout
    assert "exclusive" in done.stdout
    assert "\x1b[31m" not in done.stdout
    assert "evil?[31m?colour (c1)" in done.stdout


def test_release_needs_force_for_a_live_container(host: Host, bundle: Bundle) -> None:
    assert host.start(bundle.asking_for("any:2").path, "c1").returncode == 0
    done = host.gpulatch("release", "c1")
    assert done.returncode == 1
    assert "stop it, or add --force" in done.stderr
    assert host.held() == {"c1": [0, 1]}
    done = host.gpulatch("release", "c1", "--force")
    assert (done.returncode, done.stdout) == (0, "Released GPUs 0,1 of container c1.\n")
    assert host.held() == {}
    assert host.gpulatch("release", "c1").returncode == 1
    assert json.loads(host.run(["runc", "--root", ROOT, "state", "c1"]).stdout)["status"] == "running"


@pytest.mark.parametrize("arguments", [["claims"], ["release", "c1"], ["resolve", "--config"]])
def test_a_rootless_user_gets_one_line(host: Host, bundle: Bundle, arguments: list[str]) -> None:
    """The user id is claimed, not taken: an ordinary user may not be able to read the checkout that is tested."""
    as_user = "import os; os.geteuid = lambda: 1000;"
    done = host.gpulatch_as(
        as_user, *arguments, *([str(bundle.asking_for("any:1").config)] if "resolve" in arguments else [])
    )
    assert done.returncode == 1
    assert "rootless caller" in done.stderr
    assert done.stderr.count("\n") == 1
