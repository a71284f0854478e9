import errno
import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from drivers.samples import nvlink_host

from runtime_wrapper import ledger as ledger_module
from runtime_wrapper import lock, proc
from runtime_wrapper.claim import Claim, devices_of
from runtime_wrapper.clock import now
from runtime_wrapper.errors import (
    LedgerError,
    LiveClaimError,
    LockTimeoutError,
    NoClaimError,
    NotRootError,
    UntrustedPathError,
)
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.proc import Cgroup, Process

pytestmark = pytest.mark.needs("root")

HOST = nvlink_host()
DEAD = Process(2**22 + 1, 1)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "state"))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"])
    yield child
    child.kill()
    child.wait()


def identity(pid: int) -> Process:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return Process(pid, int(fields[19]))


def claim(
    name: str, *indices: int, holder: Process | None = None, policy: str = "exclusive", root: str = "/nowhere"
) -> Claim:
    return Claim(
        id=name,
        root=root,
        bundle="/b",
        config=f"/b/{name}.json",
        name=None,
        engine="none",
        runtime="gpulatch-runtime",
        devices=devices_of([HOST.gpus[i] for i in indices]),
        policy=policy,
        source="env GPULATCH_GPUS",
        request="any",
        since=now(),
        holder=holder or Process.current(),
    )


def book(ledger: Ledger, *claims: Claim) -> None:
    with ledger.locked() as found:
        for one in claims:
            found.add(one)


def test_a_claim_is_there_for_the_next_reader(ledger: Ledger) -> None:
    booked = claim("a", 0, 3)
    book(ledger, booked)
    assert ledger.read().claims == [booked]
    holders = ledger.read().holders(HOST)
    assert sorted(holders) == [0, 3]
    assert holders[3][0].policy == "exclusive"


def test_the_claims_of_the_dead_are_gone_and_leave_the_file_with_the_next_booking(ledger: Ledger) -> None:
    book(ledger, claim("dead", 0, holder=DEAD), claim("alive", 1))
    assert [one.id for one in ledger.read().claims] == ["alive"]
    book(ledger, claim("new", 2))
    text = json.loads(Path(ledger.state_dir, "ledger.json").read_text())
    assert [one["id"] for one in text["claims"]] == ["alive", "new"]


def test_a_reused_pid_is_another_process(ledger: Ledger) -> None:
    me = Process.current()
    book(ledger, claim("old", 0, holder=Process(me.pid, me.start - 1)))
    assert ledger.read().claims == []


def test_a_zombie_is_dead(ledger: Ledger) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    booked = claim("z", 0, holder=identity(child.pid))
    book(ledger, booked)
    assert ledger.read().claims == [booked]
    child.kill()
    deadline = time.monotonic() + 5
    while b") Z" not in Path(f"/proc/{child.pid}/stat").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ledger.read().claims == []
    child.wait()


def test_the_init_process_of_runc_keeps_the_claim(
    ledger: Ledger, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    booked = claim("c", 0, holder=DEAD, root=str(tmp_path))
    init = identity(sleeper.pid)
    state = {
        "id": "c",
        "init_process_pid": init.pid,
        "init_process_start": init.start,
        "config": {"labels": [f"gpulatch.io/claim={booked.token}"]},
        "cgroup_paths": {"": str(tmp_path)},
    }
    (tmp_path / "c").mkdir()
    (tmp_path / "c/state.json").write_text(json.dumps(state))
    book(ledger, booked)
    assert ledger.read().claims == [replace(booked, init=init, cgroup=Cgroup.at(str(tmp_path)))]
    sleeper.kill()
    sleeper.wait()
    assert ledger.read().claims == []


def test_the_init_process_of_crun_keeps_the_claim(
    ledger: Ledger, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    booked = claim("c", 0, holder=DEAD, root=str(tmp_path))
    init = identity(sleeper.pid)
    (tmp_path / "c").mkdir()
    status = {"pid": init.pid, "process-start-time": init.start, "cgroup-path": "", "owner": "root"}
    (tmp_path / "c/status").write_text(json.dumps(status))
    (tmp_path / "c/config.json").write_text(json.dumps({"annotations": {"gpulatch.io/claim": booked.token}}))
    book(ledger, booked)
    assert ledger.read().claims == [replace(booked, init=init, cgroup=Cgroup.at("/sys/fs/cgroup"))]


def test_the_state_of_another_life_of_the_id_does_not_revive_a_claim(
    ledger: Ledger, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    init = identity(sleeper.pid)
    (tmp_path / "c").mkdir()
    state = {
        "init_process_pid": init.pid,
        "init_process_start": init.start,
        "config": {"labels": ["gpulatch.io/claim=1.2"]},
    }
    (tmp_path / "c/state.json").write_text(json.dumps(state))
    book(ledger, claim("c", 0, holder=DEAD, root=str(tmp_path)))
    assert ledger.read().claims == []


@pytest.mark.parametrize(
    "text",
    ["", "{ TOKEN", '["TOKEN"]', '{"init_process_pid": "TOKEN"}', '{"id": "TOKEN", "cgroup_paths": 3}', "\0TOKEN"],
)
def test_a_damaged_runtime_state_is_no_proof_of_life_and_no_error(ledger: Ledger, tmp_path: Path, text: str) -> None:
    booked = claim("c", 0, holder=DEAD, root=str(tmp_path))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/state.json").write_text(text.replace("TOKEN", booked.token))
    book(ledger, booked)
    assert ledger.read().claims == []


def test_processes_left_in_the_cgroup_keep_the_claim(ledger: Ledger, tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    booked = replace(claim("c", 0, holder=DEAD), init=DEAD, cgroup=Cgroup.at(str(cgroup)))
    book(ledger, booked)
    assert ledger.read().claims == [booked]
    (cgroup / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert ledger.read().claims == []


def test_the_v1_cgroup_counts_by_its_processes(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("123\n")
    booked = replace(claim("c", 0, holder=DEAD), init=DEAD, cgroup=Cgroup.at(str(tmp_path)))
    book(ledger, booked)
    assert ledger.read().claims == [booked]
    (tmp_path / "cgroup.procs").write_text("")
    assert ledger.read().claims == []


def test_another_boot_is_an_empty_book(ledger: Ledger) -> None:
    book(ledger, claim("a", 0))
    path = Path(ledger.state_dir, "ledger.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    assert ledger.read().claims == []
    book(ledger, claim("b", 0))
    assert [one.id for one in ledger.read().claims] == ["b"]


DAMAGED = [
    "",
    "{",
    "[]",
    "null",
    '{"schema": "gpulatch-ledger/2", "generation": 1}',
    "\0" * 4096,
    '{"claims": 3}',
    "[" * 99999,
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_ledger_is_set_aside_and_written_anew(ledger: Ledger, text: str) -> None:
    book(ledger, claim("a", 0))
    path = Path(ledger.state_dir, "ledger.json")
    path.write_text(text)
    assert ledger.read().claims == []  # no container is there to find: see the tests with real ones
    assert path.read_text() == text  # a reader changes nothing
    book(ledger, claim("b", 1))
    assert [one.id for one in ledger.read().claims] == ["b"]
    assert Path(ledger.state_dir, "ledger.bad.json").read_text() == text


def test_an_error_inside_the_lock_books_nothing(ledger: Ledger) -> None:
    book(ledger, claim("a", 0))
    with pytest.raises(RuntimeError), ledger.locked() as found:
        found.add(claim("b", 1))
        raise RuntimeError
    assert [one.id for one in ledger.read().claims] == ["a"]


def test_a_full_disk_loses_no_claim(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    book(ledger, claim("a", 0))

    def no_space(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime_wrapper.atomic._write_all", no_space)
    with pytest.raises(LedgerError, match="ENOSPC"):
        book(ledger, claim("b", 1))
    assert [one.id for one in ledger.read().claims] == ["a"]


def test_observed_claims_are_listed_and_hinder_nobody(ledger: Ledger) -> None:
    book(ledger, replace(claim("o", 0), observed=True))
    assert ledger.read().holders(HOST) == {}
    assert [one.id for one in ledger.read().claims] == ["o"]


def test_a_claim_by_pci_address_is_found_once_the_uuid_is_known(ledger: Ledger) -> None:
    unknown = tuple(replace(gpu, uuid=None) for gpu in HOST.gpus)
    book(ledger, replace(claim("a"), devices=devices_of(unknown[2:3])))
    assert list(ledger.read().holders(HOST)) == [2]


def test_a_live_container_is_not_booked_twice(ledger: Ledger) -> None:
    book(ledger, claim("a", 0, root="/r"))
    with ledger.locked() as found:
        with pytest.raises(LiveClaimError, match="already holds GPUs 0"):
            found.refuse_live("a", "/r")
        found.refuse_live("a", "/other")


def test_a_live_claim_is_released_by_force_only(ledger: Ledger) -> None:
    book(ledger, claim("a", 0))
    with pytest.raises(LiveClaimError, match="--force"):
        ledger.release("a", None, force=False)
    assert ledger.release("a", None, force=True).id == "a"
    assert ledger.read().claims == []
    with pytest.raises(NoClaimError):
        ledger.release("a", None, force=True)


def test_a_claim_is_released_by_what_only_its_id_begins_with(ledger: Ledger) -> None:
    book(ledger, claim("web-1", 0), claim("web-2", 1), claim("web", 2), claim("web-2", 3, root="/other"))
    with pytest.raises(NoClaimError, match="fits web-1 .*, web-2"):
        ledger.release("web-", None, force=True)
    with pytest.raises(NoClaimError, match="add --root"):
        ledger.release("web-2", None, force=True)
    assert ledger.release("web-2", "/other", force=True).devices[0].index == 3
    assert ledger.release("web", None, force=True).id == "web"
    assert ledger.release("web-1", None, force=True).id == "web-1"


def test_only_an_engines_long_id_is_cut() -> None:
    assert claim("web-frontend-production-1", 0).container == "web-frontend-production-1"
    assert claim("a1" * 32, 0).container == "a1" * 6


def test_the_lock_is_waited_for_and_the_wait_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TIMEOUT_S", 0.2)
    book(ledger)
    keeper = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys,time;f=open(sys.argv[1]);fcntl.flock(f,2);print(1,flush=True);time.sleep(99)",
            f"{ledger.state_dir}/lock",
        ],
        stdout=subprocess.PIPE,
    )
    assert keeper.stdout
    keeper.stdout.readline()
    with pytest.raises(LockTimeoutError, match="has kept it for 0.2 s"):
        book(ledger, claim("a", 0))
    keeper.kill()
    keeper.wait()
    book(ledger, claim("a", 0))
    assert len(ledger.read().claims) == 1


def test_a_held_lock_is_not_inherited_by_exec(ledger: Ledger) -> None:
    with ledger.locked():
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
                target = os.readlink(f"/proc/self/fd/{name}")
                assert not target.startswith(ledger.state_dir) or not os.get_inheritable(int(name))


def _book_one(state_dir: str, name: str, holder: Process) -> None:
    with Ledger(state_dir).locked() as found:
        taken = found.holders(HOST)
        free = [gpu for gpu in HOST.gpus if gpu.index not in taken]
        if free:
            found.add(claim(name, free[0].index, holder=holder))


def test_no_booking_is_lost_when_many_book_at_once(ledger: Ledger) -> None:
    ledger.prepare()
    processes = [
        multiprocessing.get_context("fork").Process(
            target=_book_one, args=(ledger.state_dir, f"c{i}", Process.current())
        )
        for i in range(20)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    claims = ledger.read().claims
    assert sorted(one.devices[0].index for one in claims) == list(range(8))


@pytest.mark.parametrize("kind", ["mode", "owner", "link"])
def test_a_foreign_state_directory_is_refused(ledger: Ledger, kind: str) -> None:
    path = Path(ledger.state_dir)
    path.mkdir(mode=0o700)
    if kind == "mode":
        path.chmod(0o755)
    elif kind == "owner":
        os.chown(path, 1000, 1000)
    else:
        path.rename(path.with_name("real"))
        path.symlink_to("real")
    with pytest.raises(UntrustedPathError):
        book(ledger, claim("a", 0))


def test_a_rootless_caller_gets_one_clear_line(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRootError, match="uid 1000 has no part in it"):
        book(ledger, claim("a", 0))
    assert not Path(ledger.state_dir).exists()


def test_a_symbolic_link_in_place_of_the_lock_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    ledger.prepare()
    target = tmp_path / "target"
    target.write_text("x")
    Path(ledger.state_dir, "lock").symlink_to(target)
    with pytest.raises(LedgerError, match="ELOOP"):
        book(ledger, claim("a", 0))
    assert target.read_text() == "x"


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.EIO, errno.EACCES])
def test_what_cannot_be_told_is_never_taken_for_dead(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    book(ledger, claim("a", 0))
    real = os.open

    def failing(path: str, *more: int, **named: int) -> int:
        if str(path).startswith("/proc/") and str(path).endswith("/stat"):
            raise OSError(number, "injected", path)
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(LedgerError, match="cannot be told"), ledger.locked():
        raise AssertionError("the book must not be opened")
    monkeypatch.undo()
    assert [one.id for one in ledger.read().claims] == ["a"]


def test_another_cgroup_at_the_same_path_keeps_no_claim(ledger: Ledger, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "cgroup.events").write_text("populated 1\n")
    booked = replace(claim("c", 0, holder=DEAD), init=DEAD, cgroup=Cgroup.at(str(first)))
    book(ledger, booked)
    assert ledger.read().claims == [booked]
    first.rename(tmp_path / "gone")
    second.rename(first)
    assert ledger.read().claims == []


def test_a_spec_file_serves_one_start_at_a_time(ledger: Ledger, sleeper: subprocess.Popen[bytes]) -> None:
    book(ledger, claim("a", 0))
    with ledger.locked() as found:
        with pytest.raises(LiveClaimError, match="container a is being started from this file right now"):
            found.refuse_shared_spec("/b/a.json")
        found.refuse_shared_spec("/b/b.json")
    book(ledger, replace(claim("b", 1), init=identity(sleeper.pid)))
    with ledger.locked() as found:
        found.refuse_shared_spec("/b/b.json")  # its runtime has read the file


def test_a_blocked_alarm_does_not_unbound_the_wait(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TIMEOUT_S", 0.2)
    ledger.prepare()
    descriptor = os.open(f"{ledger.state_dir}/lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        with pytest.raises(LockTimeoutError):
            book(ledger, claim("a", 0))
        assert signal.SIGALRM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        os.close(descriptor)


def test_a_lock_file_that_was_unlinked_meanwhile_is_not_trusted(ledger: Ledger) -> None:
    with ledger.locked() as found:
        os.unlink(f"{ledger.state_dir}/lock")
        os.close(os.open(f"{ledger.state_dir}/lock", os.O_CREAT | os.O_WRONLY))
        found.add(claim("a", 0))
    book(ledger, claim("b", 1))
    assert sorted(one.id for one in ledger.read().claims) == ["a", "b"]


def test_a_killed_writer_leaves_one_file_at_most_and_it_is_written_over(ledger: Ledger) -> None:
    book(ledger, claim("a", 0))
    Path(ledger.state_dir, ".ledger.json.new").write_text("half")
    book(ledger, claim("b", 1))
    assert sorted(os.listdir(ledger.state_dir)) == ["ledger.json", "lock"]


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_plain_ledger_is_set_aside(ledger: Ledger, kind: str) -> None:
    ledger.prepare()
    path = Path(ledger.state_dir, "ledger.json")
    {"link": lambda: path.symlink_to("x"), "fifo": lambda: os.mkfifo(path), "directory": path.mkdir}[kind]()
    assert ledger.read().claims == []
    book(ledger, claim("b", 1))
    assert [one.id for one in ledger.read().claims] == ["b"]
    assert Path(ledger.state_dir, "ledger.bad.json").lstat().st_mode != path.lstat().st_mode


def test_root_in_a_user_namespace_is_rootless(ledger: Ledger) -> None:
    code = f"from runtime_wrapper.ledger import Ledger; Ledger({ledger.state_dir!r}).prepare()"
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "rootless caller" in done.stderr
    assert not Path(ledger.state_dir).exists()


def test_the_callers_umask_does_not_spoil_the_state_directory(ledger: Ledger) -> None:
    before = os.umask(0o777)
    try:
        book(ledger, claim("a", 0))
    finally:
        os.umask(before)
    assert [one.id for one in ledger.read().claims] == ["a"]


def test_a_create_that_ends_during_the_look_is_not_taken_for_dead(
    ledger: Ledger, tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state file is not there yet; then create writes it and ends, before the look goes on."""
    creator = subprocess.Popen(["sleep", "1000"])
    booked = claim("c", 0, holder=identity(creator.pid), root=str(tmp_path))
    book(ledger, booked)
    (tmp_path / "c").mkdir()
    real = proc.read

    def create_ends_after(path: str, **more: bool) -> bytes | None:
        text = real(path, **more)
        if creator.poll() is None:
            init = identity(sleeper.pid)
            labels = {"labels": [f"gpulatch.io/claim={booked.token}"]}
            state = {"init_process_pid": init.pid, "init_process_start": init.start, "config": labels}
            (tmp_path / "c/state.json").write_text(json.dumps(state))
            creator.kill()
            creator.wait()
        return text

    monkeypatch.setattr(proc, "read", create_ends_after)
    assert [one.id for one in ledger.read().claims] == ["c"]
    monkeypatch.undo()
    assert [one.id for one in ledger.read().claims] == ["c"]


def test_what_an_ended_container_held_is_remembered_for_its_restart(ledger: Ledger) -> None:
    book(ledger, claim("a", 3, 6, holder=DEAD, root="/r"), claim("b", 1))
    found = ledger.read()
    assert found.had_before("a", "/r", HOST) == [3, 6]
    assert found.had_before("a", "/other", HOST) == []
    assert found.had_before("b", "/r", HOST) == []
    book(ledger, claim("c", 2))
    book(ledger, claim("a", 4, holder=DEAD, root="/r"))
    assert ledger.read().had_before("a", "/r", HOST) == [4]


def test_the_memory_of_ended_containers_is_bounded(ledger: Ledger) -> None:
    for i in range(ledger_module.MAX_PAST + 20):
        book(ledger, claim(f"c{i}", 0, holder=DEAD))
    text = json.loads(Path(ledger.state_dir, "ledger.json").read_text())
    assert len(text["past"]) == ledger_module.MAX_PAST
    assert ledger.read().had_before("c5", "/nowhere", HOST) == []


def test_an_observed_claim_is_not_remembered(ledger: Ledger) -> None:
    book(ledger, replace(claim("o", 0, holder=DEAD, root="/r"), observed=True))
    assert ledger.read().had_before("o", "/r", HOST) == []


@pytest.mark.parametrize("schema", ["gpulatch-ledger/0", "gpulatch-ledger/3", 7])
def test_a_ledger_of_another_version_is_no_ledger_of_ours(ledger: Ledger, schema: object) -> None:
    book(ledger, claim("a", 0))
    path = Path(ledger.state_dir, "ledger.json")
    raw = json.dumps({**json.loads(path.read_text()), "schema": schema}).encode()
    with pytest.raises(LedgerError, match="is of another version of gpulatch"):
        ledger_module.parse(raw, str(path))
    path.write_bytes(raw)
    assert "another version" in str(ledger.read().lost)
    path.write_text(json.dumps({**json.loads(raw), "boot_id": "another"}))
    assert ledger.read().lost is None  # nothing of it would count anyway


def test_a_ledger_of_the_first_version_is_read(ledger: Ledger) -> None:
    booked = claim("a", 0)
    book(ledger, booked)
    path = Path(ledger.state_dir, "ledger.json")
    data = json.loads(path.read_text())
    del data["released"], data["claims"][0]["engine"]
    path.write_text(json.dumps({**data, "schema": "gpulatch-ledger/1"}))
    assert ledger.read().claims == [replace(booked, engine="")]
