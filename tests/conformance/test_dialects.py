"""The case tables of NVIDIA's tools: what each dialect asks for, row by row.

A row is equal, or `docs/compatibility.md` lists it with the reason; a listed row that is equal fails too.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import (
    cdi,
    cdi_annotations,
    docker,
    edits,
    placement,
    policy,
    request,
    selectors,
    sources,
    variables,
)
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.inventory import Gpu, Inventory, Link
from runtime_wrapper.request import Request
from runtime_wrapper.settings import Settings
from runtime_wrapper.settings_values import accepted

TESTS = Path(__file__).parent.parent
ROWS: dict[str, list[dict[str, Any]]] = json.loads((TESTS / "data/nvidia_dialects.json").read_text())
ROWS["A"] = json.loads((TESTS / "data/nvidia_requests.json").read_text())
PAGE = (TESTS.parent / "docs/compatibility.md").read_text()
LISTED = set(re.findall(r"[A-Z]\d{3}", "".join(re.findall(r"^\| ([A-Z]\d{3}.*?) \|", PAGE, re.MULTILINE))))

REFUSED = "refused"

# The tables stand ids that no host has for any id; these have the form of one.
PLACEHOLDERS = {"gpu0": "0", "gpu1": "1", "GPU1": "1", "GPU2": "2", "GPU-1": "GPU-11111111", "GPU-2": "GPU-22222222"}
PLACEHOLDERS |= {"GPU-aaa": "GPU-aaaaaaaa", "GPU-bbb": "GPU-bbbbbbbb", "nvidia.com/gpu=device": "3", "device": "3"}


def told(group: str) -> Any:
    """Runs the test for each row of a group."""
    return pytest.mark.parametrize("row", ROWS[group], ids=lambda row: row["id"])


def agree(row: dict[str, Any], ours: Any, theirs: Any) -> None:
    if row["id"] in LISTED:
        assert ours != theirs, "docs/compatibility.md lists this row, and it is equal"
    else:
        assert ours == theirs


def given(text: str) -> str:
    """A text of the tables with ids of the right form for its placeholders."""
    return re.sub(r"[^,\s\"]+", lambda word: PLACEHOLDERS.get(word[0], word[0]), text)


def shown(find: Callable[[], Request | None]) -> Any:
    """A request in the words of the tables: None, [""] for none, ["all"], or ids in one spelling."""
    try:
        found = find()
    except GpulatchError:
        return REFUSED
    if found is None or found.none:
        return found and [""]
    return ["all"] if found.every else [*found.named]


def canonical(ids: list[str] | None) -> list[str] | None:
    if ids in (None, [""], ["all"]):
        return ids
    return [_canonical(given(one)) for one in ids or ()]


def _canonical(name: str) -> str:
    try:
        return selectors.canonical(cdi.selector(name), "row")
    except GpulatchError:
        return name


def wanted(data: dict[str, Any], settings: Settings) -> Request | None:
    wishes = sources.wishes(data, "c1")
    return policy.choose(wishes, settings, privileged=sources.privileged(data)).request()


def settings_of(swarm: str | None, mounts: bool, annotations: bool, env: str) -> Settings:
    named = accepted("swarm_resources", swarm.split(",")) if swarm else ()
    off = {"volume_mounts": mounts, "cdi_annotations": annotations}
    counting = tuple(name for name in sources.SOURCES if off.get(name, True))
    return Settings(sources=counting, swarm_resources=tuple(named or ()), accept_env=env)


def spec(env: list[str], mounts: list[str], annotations: dict[str, str], bounding: list[str]) -> dict[str, Any]:
    pairs = [mount.split(":", 1) for mount in mounts]
    return {
        "process": {"env": env, "capabilities": {"bounding": bounding}},
        "annotations": annotations,
        "mounts": [{"source": source, "destination": target} for source, target in pairs],
    }


@told("A")
def test_a_whole_request(row: dict[str, Any]) -> None:
    case, expect = row["in"], row["expect"]
    env = [f"{name}={given(value)}" for name, _, value in (entry.partition("=") for entry in case.get("env", []))]
    data = spec(env, case.get("mounts", []), case.get("annotations", {}), case.get("bounding", []))
    settings = settings_of(
        case.get("swarm_resource"),
        case.get("accept_volume_mounts", False),
        "annotation_prefixes" in case,
        "always" if case.get("accept_env_unprivileged", True) else "privileged",
    )
    agree(row, shown(lambda: wanted(data, settings)), canonical(expect["devices"]))
    assert sources.privileged(data) is expect["privileged"]
    environment = dict(entry.split("=", 1) for entry in env)
    assert variables.is_legacy(environment) is expect["legacy_image"]


@told("B")
def test_an_identifier(row: dict[str, Any]) -> None:
    name = row["in"]
    kinds = dict.fromkeys(row["expect"], False)
    try:
        kind = "gpu_index" if selectors.canonical(name, "row").isdigit() else "gpu_uuid"
        kinds[kind] = True
    except GpulatchError:
        if selectors.is_mig(name):
            kinds["mig_index" if name[0].isdigit() else "mig_uuid"] = True
    agree(row, kinds, row["expect"])


@told("C")
def test_a_cdi_name(row: dict[str, Any]) -> None:
    found = cdi.parse(row["in"])
    parts = dict(zip(("vendor", "class", "name"), found, strict=True)) if found else {}
    theirs = {key: value for key, value in row["expect"].items() if key != "error"}
    agree(row, {**parts, "qualified": found is not None}, theirs)


CONTAINER = "c" * 64


@told("F")
def test_dockers_gpus_option(row: dict[str, Any], tmp_path: Path) -> None:
    """What the daemon makes ids of is read from its record; a count stays a count, of free GPUs."""
    expect = row["expect"]
    if "cli_error" in expect or "daemon_error" in expect:
        agree(row, "no container", "no container")
        return
    record = tmp_path / "containers" / CONTAINER
    record.mkdir(parents=True)
    (record / "hostconfig.json").write_text(given(json.dumps({"DeviceRequests": [expect["request"]]})))
    data = {"mounts": [{"destination": "/etc/hosts", "source": f"{record}/hosts"}]}
    text = docker.device_requests(data, CONTAINER) or ""
    if text.startswith("any:"):
        agree(row, text, f"any:{len(expect['ids'])}")
    else:
        agree(row, shown(lambda: request.parse(text, "row")), canonical(expect.get("ids")))


@told("K")
def test_a_whole_request_of_the_hook(row: dict[str, Any]) -> None:
    env = [f"{name}={given(value) if 'REQUIRE' not in name else value}" for name, value in row["env"].items()]
    data = spec(env, [], {}, ["CAP_SYS_ADMIN"] if row["privileged"] else [])
    settings = settings_of(row.get("config", {}).get("swarm-resource"), False, False, "always")
    ours: Any = shown(lambda: wanted(data, settings))
    expect = row["expect"]
    if expect and "error" not in expect:
        ours = {"devices": ours, "caps": edits.capabilities(data)}
        expect = {"devices": canonical(expect["devices"]), "caps": set(expect["caps"].split(" (")[0].split(","))}
    agree(row, ours, expect)


@told("L")
def test_privileged(row: dict[str, Any]) -> None:
    given_ = row["in"]
    capabilities = given_.get("capabilities", {key: given_[key] for key in given_.keys() & {"bounding", "effective"}})
    agree(row, sources.privileged({"process": {"capabilities": capabilities}}), row["expect"])


@told("O")
def test_a_request_list_of_cdi_mode(row: dict[str, Any]) -> None:
    env = [f"NVIDIA_VISIBLE_DEVICES={row['env']}"] if "env" in row else []
    env += [f"{name}={row[name]}" for name in row.get("preferred_env", [])]
    env += [f"{name}={value}" for name, value in row.get("gated", {}).items()]
    mounts = [f"/dev/null:/var/run/nvidia-container-devices/{mount}" for mount in row.get("mounts", [])]
    annotations = {
        f"cdi.k8s.io/{prefix.strip('/')}_{name.removeprefix(prefix)}": given(value)
        for prefix in row.get("prefixes", [])
        for name, value in row.get("annotations", {}).items()
        if name.startswith(prefix)
    }
    settings = settings_of(",".join(row.get("preferred_env", [])), True, True, "always")
    ours = shown(lambda: wanted(spec(env, mounts, annotations, []), settings))
    theirs = row.get("expect", row.get("expect_extra"))
    if isinstance(theirs, str):
        theirs = REFUSED
    elif theirs is not None:
        names = [cdi.selector(given(name)) for name in theirs]
        theirs = [""] if names == ["none"] else canonical(names)
    agree(row, ours, theirs)


UUIDS = ("GPU-b1028956-cfa2-0990-bf4a-5da9abb51763", "GPU-8ea38550-276c-c9cb-b366-c6fa655957c5")
TWO = Inventory(
    (
        Gpu(0, UUIDS[0], "0000:3b:00.0", 0, "A100", None),
        Gpu(1, UUIDS[1], "0000:5e:00.0", 1, "A100", None, mig=True),
    ),
    ((None, Link("SYS")), (Link("SYS"), None)),
)
SELECTED: dict[str, Any] = {
    "GPU 0": [0],
    "GPU 0 once": [0],
    "that GPU": [0],
    "GPU at that PCI address": [0],
    "error unknown device": REFUSED,
    "handled by the hook before: no device": [],
}


@told("P")
def test_a_device_selection(row: dict[str, Any]) -> None:
    """Two GPUs, the second split by MIG."""
    text = row["in"].replace("<full uuid>", UUIDS[0][4:]).replace("<first 8 hex>", UUIDS[0][4:12])
    ours: Any = REFUSED
    try:
        found = request.parse(text, "row")
        assert found is not None
        ours = [] if found.none else [gpu.index for gpu in placement.choose(found, TWO, {}).gpus]
    except GpulatchError:
        pass
    agree(row, ours, SELECTED.get(row["expect"], row["expect"]))


@told("Q")
def test_a_cdi_annotation(row: dict[str, Any]) -> None:
    if "key" in row:
        agree(row, "gpulatch writes none", row["expect"])
        return
    ours: Any = []
    for place, text in cdi_annotations.asked({"annotations": row["annotations"]}):
        ours = shown(lambda place=place, text=text: request.parse(text, place))  # type: ignore[misc]
    agree(row, ours, REFUSED if row["expect"] == "error" else row["expect"])


def test_every_listed_row_is_one_of_the_tables_and_has_a_reason() -> None:
    ids = {row["id"] for rows in ROWS.values() for row in rows}
    mine = {row for row in LISTED if row[0] in ROWS}
    assert mine and mine <= ids
    for line in re.findall(r"^\| [A-Z]\d{3}.*$", PAGE, re.MULTILINE):
        assert len(line.strip("| ").split(" | ")) == 4, line
