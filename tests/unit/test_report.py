import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from runtime_wrapper import report
from runtime_wrapper.errors import RequestError, one_line, quoted

ERROR = RequestError('token "x"', "env GPULATCH_GPUS", 'is "no" selector', "use another")
LINE = 'gpulatch: token "x", env GPULATCH_GPUS: is "no" selector; use another (GL-2001)'


def test_docker_reads_the_last_json_record_and_podman_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.json"
    log.write_text('{"level":"info","msg":"before"}\n')
    report.refusal(ERROR, str(log), "json")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["msg"] for record in records] == ["before", LINE]
    assert records[-1]["level"] == "error"
    assert datetime.fromisoformat(records[-1]["time"]).tzinfo
    captured = capfd.readouterr()
    assert captured.err == LINE + "\n"
    assert captured.out == ""


def test_the_text_format_is_runcs(tmp_path: Path) -> None:
    report.refusal(ERROR, str(tmp_path / "log"), "text")
    text = (tmp_path / "log").read_text()
    assert text.startswith('time="')
    assert text.endswith(f" level=error msg={json.dumps(LINE)}\n")


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "nowhere"])
def test_a_log_that_cannot_be_written_does_not_hide_the_refusal(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    if kind == "link":
        (tmp_path / "target").write_text("keep")
        log.symlink_to("target")
    elif kind == "fifo":
        os.mkfifo(log)
    elif kind == "directory":
        log.mkdir()
    else:
        log = tmp_path / "a/b"
    report.refusal(ERROR, str(log), "json")
    assert LINE in capfd.readouterr().err
    if kind == "link":
        assert (tmp_path / "target").read_text() == "keep"


def test_a_tenants_text_cannot_break_the_line_or_change_dockers_exit_code() -> None:
    text = str(
        RequestError(quoted("a\nb\x1b[31m" + "x" * 500), "w", "No such file or directory: Permission denied", "h")
    )
    assert "\n" not in text
    assert "\x1b" not in text
    assert "permission denied" not in text.lower()
    assert "no such file or directory" not in text.lower()
    assert len(text) < 300
    assert one_line("is a directory") == "is-a-directory"


def test_lone_surrogates_can_be_reported() -> None:
    script = (
        "from runtime_wrapper import report; from runtime_wrapper.errors import RequestError;"
        "report.refusal(RequestError('a\\udcff', 'w', 'y', 'h'), '/dev/null', 'json')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env={"PYTHONPATH": ".", "LC_ALL": "C"})
    assert done.returncode == 0
    assert done.stderr.count(b"\n") == 1


def test_nobody_listening_on_stderr_is_no_error() -> None:
    script = (
        "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2);"
        "from runtime_wrapper import report; from runtime_wrapper.errors import RequestError;"
        "report.refusal(RequestError('a', 'w', 'y', 'h'), None, 'json')"
    )
    assert subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": "."}, check=False).returncode == 0


def test_a_failed_system_call_is_told_by_its_errno_and_file() -> None:
    found = report.unexpected(OSError(24, "Too many open files", "/etc/x"))
    assert "/etc/x: failed (EMFILE)" in str(found)
    assert found.code == "GL-9002"
