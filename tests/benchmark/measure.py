"""Times calls through gpulatch against the same calls to runc, one after the other in turn, and prints ratios.

Usage, inside the sandbox: measure.py [RUNS]. Medians of wall-clock time from fork to exit, in milliseconds.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drivers import usr_overlay
from drivers.bundle import Bundle
from drivers.host import RUNTIME, Host, private_directory
from drivers.image_tree import ImageTree
from drivers.user_space import UserSpace

from runtime_wrapper import recovery, snapshot
from runtime_wrapper.claim import Claim, devices_of
from runtime_wrapper.clock import now
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.placement import choose
from runtime_wrapper.probe import machine
from runtime_wrapper.proc import Process
from runtime_wrapper.request import parse

RUNC = "/usr/sbin/runc"
CRUN = "/usr/bin/crun"
RUNC_ROOT = "/run/bench-runc"
MACHINES = json.loads((Path(__file__).parent.parent / "data/machines.json").read_text())

Call = Callable[[], None]


def main(runs: int) -> None:
    folder = Path(tempfile.mkdtemp(dir="/run"))
    host = Host()
    snapshot_ready(host)
    try:
        pass_through(host, folder, runs)
        creating(host, folder, runs)
        on_crun(folder, runs)
        with_driver_files(host, folder, runs)
        looking_around(folder, runs)
        under_the_lock(folder, runs)
    finally:
        host.close()
        shutil.rmtree(folder)


def pass_through(host: Host, folder: Path, runs: int) -> None:
    """Calls that concern no GPU: the launcher execs runc."""
    bundle = Bundle(folder, "sleeper")
    spawn([RUNC, "--root", RUNC_ROOT, "run", "--detach", "--bundle", str(bundle.path), "sleeper"])
    for arguments in (
        ["--version"],
        ["features"],
        ["state", "sleeper"],
        ["kill", "sleeper", "0"],
        ["exec", "sleeper", "true"],
    ):
        command = arguments if arguments[0].startswith("-") else ["--root", RUNC_ROOT, *arguments]
        calls = {name: caller([program, *command]) for name, program in (("runc", RUNC), ("gpulatch", RUNTIME))}
        report(f"{arguments[0]}", interleaved(calls, runs), "runc")
    spawn([RUNC, "--root", RUNC_ROOT, "delete", "--force", "sleeper"])


def creating(host: Host, folder: Path, runs: int) -> None:
    """create + start + delete without a request, and with 4 GPUs beside plain runc with the same edits in the spec."""
    plain = Bundle(folder, "plain")
    asking = Bundle(folder, "asking").asking_for("any:4")
    edited = Bundle(folder, "edited")
    life(RUNTIME, asking)()
    edited.spec = asking.on_disk()
    edited.spec["annotations"] = {}
    edited.save()
    asking.save()
    calls = {
        "runc, no GPU": life(RUNC, plain),
        "gpulatch, no GPU": life(RUNTIME, plain),
        "runc, 4 GPUs in the spec": life(RUNC, edited),
        "gpulatch, 4 GPUs asked for": life(RUNTIME, asking),
    }
    times = interleaved(calls, runs)
    report("create+start+delete", {name: times[name] for name in list(calls)[:2]}, "runc, no GPU")
    report("create+start+delete", {name: times[name] for name in list(calls)[2:]}, "runc, 4 GPUs in the spec")
    wrapper_alone(folder, runs)


def on_crun(folder: Path, runs: int) -> None:
    """The whole life of a container with 4 GPUs on crun, beside plain crun and plain runc with the same edits."""
    environment = crun_can_run(folder)
    launcher = str(private_directory(folder / "private-crun", "gpulatch-crun", CRUN))
    bundles = {name: Bundle(folder, f"life-{name}").asking_for("any:4") for name in ("runc", "crun", "ours", "on-runc")}
    life(RUNTIME, bundles["runc"])()
    edited = {**bundles["runc"].on_disk(), "annotations": {}}
    for name in ("runc", "crun"):
        bundles[name].spec = edited
        bundles[name].save()
    calls = {
        "runc, 4 GPUs in the spec": life(RUNC, bundles["runc"], environment),
        "crun, 4 GPUs in the spec": life(CRUN, bundles["crun"], environment),
        "gpulatch on runc, 4 GPUs": life(RUNTIME, bundles["on-runc"], environment),
        "gpulatch on crun, 4 GPUs": life(launcher, bundles["ours"], environment),
    }
    times = interleaved(calls, runs)
    report("life against runc", times, "runc, 4 GPUs in the spec")
    report("life against crun", {name: times[name] for name in list(calls)[1::2]}, "crun, 4 GPUs in the spec")


def with_driver_files(host: Host, folder: Path, runs: int) -> None:
    """The whole life of a container with 4 GPUs in a glibc image, with the driver's files and without."""
    environment = crun_can_run(folder)
    subprocess.run(["mount", "-t", "tmpfs", "bench", "/usr/local/bin"], check=True)  # the sandbox's own
    user_space = UserSpace(folder / "nvidia", Path("/usr/local/bin"))
    user_space.install()
    user_space.write_cache(Path("/etc/ld.so.cache"))
    launchers = {"runc": RUNTIME, "crun": str(folder / "private-crun/bin/gpulatch-crun")}
    calls = {}
    for name, launcher in launchers.items():
        for files in ("compute,utility", "video"):
            bundle = Bundle(folder, f"files-{name}-{files}").asking_for("any:4")
            bundle.spec["root"]["path"] = str(ImageTree(folder / f"image-{name}-{files}").root)
            bundle.env(f"NVIDIA_DRIVER_CAPABILITIES={files}")
            calls[f"{name}, {files}"] = life(launcher, bundle, environment)
    times = interleaved(calls, runs)
    for name in launchers:
        mine = {call: times[call] for call in times if call.startswith(name)}
        report(f"driver files on {name}", mine, f"{name}, video")
    told = [event for event in host.events("bench") if any("driver files" in line for line in event["edits"])]
    print(f"phase files: {statistics.median(event['phases_ms']['files'] for event in told):.2f} ms")
    print(f"mounts: {[line for line in told[-1]['edits'] if 'driver files' in line]}")


def crun_can_run(folder: Path) -> dict[str, str]:
    """Variables with which crun starts here: without CAP_SYS_RESOURCE its wish for locked memory is granted in word."""
    if usr_overlay.may_raise_limits():
        return {}
    library = folder / "locked-memory.so"
    source = Path(usr_overlay.__file__).parent / "locked_memory.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {"LD_PRELOAD": str(library)}


def looking_around(folder: Path, runs: int) -> None:
    """What every create of a GPU container does before the lock: look for running containers that nobody booked."""
    bundle = Bundle(folder, "example")
    spawn([RUNC, "--root", RUNC_ROOT, "run", "--detach", "--bundle", str(bundle.path), "example"])
    state = json.loads(Path(RUNC_ROOT, "example/state.json").read_text())
    state["config"]["filler"] = "x" * 25_000  # as large as Docker's
    for count in (0, 20, 200):
        root = folder / f"root-{count}"
        for number in range(count):
            (root / f"c{number}").mkdir(parents=True)
            (root / f"c{number}/state.json").write_text(json.dumps(state))
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            assert recovery.running({}, (str(root),)) == recovery.Look()
            times.append((time.perf_counter() - start) * 1000)
        print(f"looking around, {count} containers without GPUs: {statistics.median(times):.2f} ms")
    spawn([RUNC, "--root", RUNC_ROOT, "delete", "--force", "example"])


def wrapper_alone(folder: Path, runs: int) -> None:
    """What create costs before the low-level runtime starts: the runtime is /bin/true."""
    launcher = str(private_directory(folder / "private", "gpulatch-true", "/bin/true"))
    asking, plain = Bundle(folder, "asking-alone").asking_for("any:4"), Bundle(folder, "plain-alone")
    calls = {
        "true": caller(["/bin/true"]),
        "create, no GPU": caller([launcher, "create", "--bundle", str(plain.path), "alone"]),
        "create, 4 GPUs": caller([launcher, "create", "--bundle", str(asking.path), "alone"]),
    }
    report("wrapper alone", interleaved(calls, runs), "true")


def under_the_lock(folder: Path, runs: int) -> None:
    """Reconcile, place, book and write, as a create does while it holds the lock."""
    for name, claims in (("dgx_a100_x8_mlx12", 0), ("dgx_a100_x8_mlx12", 8), ("dgx2_v100_x16_nv6_partial", 200)):
        data = next(found for found in MACHINES if found["name"] == name)
        inventory = machine.parse(json.dumps(data).encode(), name)
        ledger = Ledger(str(folder / f"state-{name}-{claims}"))
        with ledger.locked() as book:
            for number in range(claims):
                book.add(shared_claim(inventory, number))
        times = [booking(ledger, inventory) for _ in range(runs)]
        print(f"under the lock, {len(inventory.gpus)} GPUs, {claims} claims: {statistics.median(times):.2f} ms")


def booking(ledger: Ledger, inventory: Inventory) -> float:
    """Milliseconds from taking the lock until it is given back, with the best half of all GPUs chosen on the way."""
    wanted = parse(f"any:{len(inventory.gpus) // 2}", "benchmark")
    assert wanted is not None
    start = time.perf_counter()
    with ledger.locked() as book:
        book.holders(inventory)
        offer = choose(wanted, inventory, {})  # as if all were free: the most sets to weigh
        mine = shared_claim(inventory, offer.gpus[0].index)
        book.add(mine)
    elapsed = (time.perf_counter() - start) * 1000
    with ledger.locked() as book:
        book.remove([mine])
    return elapsed


def shared_claim(inventory: Inventory, number: int) -> Claim:
    """A live claim whose init was seen at an earlier look, as all but the newest are."""
    me = Process.current()
    return Claim(
        id=f"c{number}",
        root="/r",
        bundle="/b",
        config=f"/b/{number}.json",
        name=None,
        engine="none",
        runtime="gpulatch-runtime",
        devices=devices_of([inventory.gpus[number % len(inventory.gpus)]]),
        policy="shared",
        source="env GPULATCH_GPUS",
        request="0",
        since=now(),
        holder=me,
        init=me,
    )


def snapshot_ready(host: Host) -> None:
    Ledger().prepare()
    snapshot.load()


def life(runtime: str, bundle: Bundle, environment: Mapping[str, str] | None = None) -> Call:
    root = ["--root", RUNC_ROOT]

    def run() -> None:
        for words in (["create", "--bundle", str(bundle.path), "bench"], ["start", "bench"], ["delete", "-f", "bench"]):
            spawn([runtime, *root, *words], environment)

    return run


def caller(command: Sequence[str]) -> Call:
    return lambda: spawn(command)


def spawn(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1)]
    pid = os.posix_spawn(command[0], command, {**os.environ, **(environment or {})}, file_actions=actions)
    os.close(null)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"{command} ended with {status}"


def interleaved(calls: dict[str, Call], runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(runs + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if run >= 2:  # the first two warm the caches
                times[name].append((time.perf_counter() - start) * 1000)
    return times


def report(what: str, times: dict[str, list[float]], base: str) -> None:
    reference = statistics.median(times[base])
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{what:22} {name:28} {median:8.2f} ms   ratio {median / reference:.3f}   ({len(found)} runs)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
