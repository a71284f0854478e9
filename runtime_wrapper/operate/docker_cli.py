"""Asks Docker itself, by its command line, about containers that gpulatch has not seen."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from runtime_wrapper.errors import quoted
from runtime_wrapper.operate import runtimes, tables

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Docker:
    """What Docker says of a container; without an `id` it knows none, or `problem` says why it cannot tell."""

    id: str | None = None
    runtime: str | None = None
    error: str | None = None
    problem: str | None = None


def container(name: str) -> Docker:
    """Ask Docker for a container, by whatever name it knows."""
    answer, problem = ask("inspect", "--type", "container", "--", name)
    found = answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], dict) else {}
    runtime, error = _part(found, "HostConfig", "Runtime"), _part(found, "State", "Error")
    return Docker(_text(found.get("Id")), runtime, error, problem)


def unseen(docker: Docker, since: str | None) -> list[str]:
    """Why gpulatch may never have heard of a container; `since` is the time of the first event there is."""
    seen = f"since {tables.moment(since)} UTC" if since else "in the event log"
    if docker.id is None:
        known = f"and Docker could not be asked: {docker.problem}" if docker.problem else "and Docker has none"
        return [
            f"gpulatch saw no start of it {seen}, {known}",
            "if it runs, it runs under another runtime: Podman needs --runtime gpulatch, Kubernetes a runtimeClassName"
            " whose handler has gpulatch as BinaryName, ctr --runc-binary; see docs/engines.md",
            "if its start failed, its engine has said why and has not come as far as to call gpulatch",
        ]
    lines = [f"Docker says of its last start: {docker.error}"] if docker.error else []
    path = _path_of(docker.runtime)
    if path is None or not runtimes.is_launcher_path(path):
        is_what = f"which is {path}" if path else "which is not gpulatch's"
        return [
            *lines,
            f"Docker has it with the runtime {quoted(docker.runtime)}, {is_what}: start it with --runtime gpulatch, or"
            " make gpulatch Docker's default runtime",
        ]
    if not os.path.exists(path):
        return [
            *lines,
            f"Docker's runtime {quoted(docker.runtime)} is {path}, which is not there: see gpulatch runtimes",
        ]
    return [*lines, f"its runtime is gpulatch's; the event log has no start of it {seen}, and it holds no GPU"]


def _path_of(runtime: str | None) -> str | None:
    known, _ = ask("info", "--format", "{{json .Runtimes}}")
    entry = known.get(runtime) if isinstance(known, dict) else None
    return _text(entry.get("path")) if isinstance(entry, dict) else None


def _part(data: dict[str, Any], *names: str) -> str | None:
    value: Any = data
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return _text(value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def ask(*words: str) -> tuple[Any, str | None]:
    """Docker's answer as JSON, or None and, where it could not be asked, why."""
    program = shutil.which("docker")
    if program is None:
        return None, None
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return None, None if "no such" in told.lower() else told or f"exit code {done.returncode}"
        return json.loads(done.stdout), None
    except subprocess.TimeoutExpired:
        return None, f"it did not answer within {_TIMEOUT_S:g} s"
    except (OSError, ValueError, RecursionError) as error:
        return None, f"its answer makes no sense ({type(error).__name__})"
