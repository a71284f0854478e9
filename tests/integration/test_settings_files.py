"""Settings on real starts: a drop-in counts at once, a broken one stops nothing but containers that ask for GPUs."""

import json
import time
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

DROP_INS = Path("/etc/gpulatch/config.d")
COMPILED = Path("/run/gpulatch/settings.json")
SHARE = '[defaults]\ncount_when_busy = "share"\n'
BROKEN = '[defaults]\nlone_all = "none"\n\n[runtime.gpulatch-runtime]\ncount_when_busy = "perhaps"\n'


def drop_in(text: str, name: str = "50-site.toml") -> Path:
    DROP_INS.mkdir(exist_ok=True)
    (DROP_INS / name).write_text(text)
    return DROP_INS / name


def test_a_drop_in_decides_the_next_start(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "a").asking_for("any:8+policy=shared").path, "a").returncode == 0
    assert host.start(Bundle(tmp_path, "b").asking_for("any:2").path, "b").returncode == 1
    file = drop_in(SHARE)
    assert host.start(Bundle(tmp_path, "c").asking_for("any:2").path, "c").returncode == 0
    file.unlink()
    assert host.start(Bundle(tmp_path, "d").asking_for("any:2").path, "d").returncode == 1
    assert sorted(host.held()) == ["a", "c"]


def test_it_does_so_although_other_settings_are_compiled(host: Host, tmp_path: Path) -> None:
    Path("/etc/gpulatch/config.toml").write_text('[defaults]\ncount_when_busy = "refuse"\n')
    assert host.start(Bundle(tmp_path, "a").asking_for("any:8+policy=shared").path, "a").returncode == 0
    assert host.gpulatch("config", "check").stdout == "1 file, 1 section: no problem\n"
    assert json.loads(COMPILED.read_text())["sections"] == {"defaults": {"count_when_busy": "refuse"}}
    assert host.start(Bundle(tmp_path, "b").asking_for("any:2").path, "b").returncode == 1
    drop_in(SHARE)
    assert host.start(Bundle(tmp_path, "c").asking_for("any:2").path, "c").returncode == 0


def test_a_start_compiles_what_has_settled_and_goes_by_it(host: Host, tmp_path: Path) -> None:
    drop_in(SHARE)
    assert host.start(Bundle(tmp_path, "a").asking_for("any:8+policy=shared").path, "a").returncode == 0
    assert not COMPILED.exists()  # too young, and there was no state directory
    time.sleep(2.1)
    assert host.start(Bundle(tmp_path, "b").asking_for("any:2").path, "b").returncode == 0
    compiled = json.loads(COMPILED.read_text())
    assert compiled["sections"] == {"defaults": {"count_when_busy": "share"}}
    compiled["sections"]["defaults"]["count_when_busy"] = "refuse"
    COMPILED.write_text(json.dumps(compiled))
    assert host.start(Bundle(tmp_path, "c").asking_for("any:2").path, "c").returncode == 1


def test_a_broken_drop_in_stops_gpu_containers_with_file_and_line(host: Host, tmp_path: Path) -> None:
    drop_in(SHARE)
    assert host.start(Bundle(tmp_path, "before").asking_for("any:1").path, "before").returncode == 0
    assert host.gpulatch("config", "check").returncode == 0  # compiled: which must not hide what comes
    file = drop_in(BROKEN)
    done = host.start(Bundle(tmp_path, "a").asking_for("any:1").path, "a")
    assert done.returncode == 1
    place = f'gpulatch: count_when_busy "perhaps", {file} line 5, [runtime.gpulatch-runtime]: '
    assert done.stderr.startswith(place)
    assert done.stderr.count("\n") == 1
    checked = host.gpulatch("config", "check")
    assert (checked.returncode, checked.stdout, checked.stderr) == (1, "", done.stderr)


@pytest.mark.parametrize("fault", ["value", "TOML", "link", "open to all"])
def test_it_leaves_every_other_call_alone(host: Host, tmp_path: Path, fault: str) -> None:
    assert host.start(Bundle(tmp_path, "gpu").asking_for("any:1").path, "gpu").returncode == 0
    file = drop_in(BROKEN if fault == "value" else "[broken")
    if fault == "link":
        file.rename(DROP_INS / "real")
        file.symlink_to("real")
    elif fault == "open to all":
        DROP_INS.chmod(0o777)
    assert host.start(Bundle(tmp_path, "refused").asking_for("any:1").path, "refused").returncode == 1
    assert host.start(Bundle(tmp_path, "plain").path, "plain").returncode == 0
    for container in ("gpu", "plain"):
        assert json.loads(host.runtime("state", container).stdout)["status"] == "running"
        assert host.runtime("kill", container, "KILL").returncode == 0
        assert host.runtime("delete", "--force", container).returncode == 0
    assert host.held() == {}


def test_a_section_for_no_runtime_name_is_warned_of(host: Host) -> None:
    drop_in('[runtime.gpulatch-runtme]\nmode = "observe"\n')
    done = host.gpulatch("config", "check")
    assert (done.returncode, done.stdout) == (0, "1 file, 1 section: no problem\n")
    assert "perhaps gpulatch-runtime is meant" in done.stderr


def test_checking_and_showing_make_no_state_directory(host: Host) -> None:
    drop_in(SHARE)
    assert host.gpulatch("config", "check").returncode == 0
    assert "50-site.toml:2 [defaults]" in host.gpulatch("config", "show").stdout
    assert not Path("/run/gpulatch").exists()
