"""The engine's command line, read with the grammar of the low-level runtime, as an `Invocation`.

Hot and pure: the standard library only, no file is looked at. `main` calls `parse`; None means that the line is not
ours and goes to the runtime as it is. The launcher (`packaging/launcher`) finds the subcommand by the same grammars.
Sources: runc 1.0 to 1.5 (urfave/cli v1, then v3) and crun 1.8 to 1.27 (GNU argp); runc 1.1.5 and crun 1.8.1 were
asked, the others read. What only one version accepts is accepted: a line too many ends as the runtime's own error, a
line too few as a container without its GPUs. Option values (numbers, modes) are the runtime's business.
"""

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from runtime_wrapper.errors import ContainerIdError, quoted

# How an option is read: without a value, with one, with one only after `=`; _STOP prints something and exits.
_FLAG, _VALUE, _OPTIONAL, _STOP = range(4)
_Table = dict[str, int]
# Options by name, and the words after them; None for a line that the runtime refuses.
_Scanned = tuple[dict[str, str], list[str]] | None

_CONTAINER_ID = re.compile(r"[A-Za-z0-9_+.-]{1,1024}")

_TRUE = frozenset(["1", "t", "T", "true", "TRUE", "True"])
_FALSE = frozenset(["0", "f", "F", "false", "FALSE", "False"])


@dataclass(frozen=True, slots=True)
class Invocation:
    """A `create`, `run` or `restore`. All paths are absolute; `log` is None when the runtime logs to no file."""

    subcommand: str
    container_id: str
    bundle: str
    config: str
    root: str
    log: str | None
    log_format: Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class Update:
    """A crun `update` with the new resources in a file: absolute, or `-` for standard input.

    `options_end` is the index of the first word after the options.
    """

    container_id: str
    root: str
    resources: str
    options_end: int


def require_id(container_id: str) -> None:
    """Raises ContainerIdError unless this is an id that a runtime takes and that leads nowhere as part of a path."""
    if not _CONTAINER_ID.fullmatch(container_id) or container_id in (".", ".."):
        what = f"container id {quoted(container_id)}"
        hint = "use letters, digits and _ + . - only"
        raise ContainerIdError(what, "command line", "is not a valid id", hint)


def parse(args: Sequence[str], low_level: str, cwd: str, environ: Mapping[str, str], uid: int) -> Invocation | None:
    """What the words after argv[0] ask of `low_level` (a path or its basename), or None: pass them on unchanged.

    `environ` and the effective `uid` decide the runtime's default state root.
    """
    if is_crun(low_level):
        return _parse_crun(args, cwd, environ)
    return _parse_runc(args, cwd, environ, uid)


def parse_update(args: Sequence[str], low_level: str, cwd: str, environ: Mapping[str, str]) -> Update | None:
    """What a crun `update` changes by a file of resources, or None: it is another line, or another runtime's."""
    head = _scan_argp(args, _CRUN_GLOBAL) if is_crun(low_level) else None
    if not head or not head[1] or head[1][0] != "update":
        return None
    found = _scan_argp(head[1][1:], _CRUN_UPDATE)
    resources = found[0].get("resources") if found else None
    if not found or not resources or len(found[1]) != 1:
        return None
    end = len(args) - 1
    root = _absolute((head[0] | found[0]).get("root", _crun_root(environ)), cwd)
    return Update(
        found[1][0],
        root,
        resources if resources == "-" else os.path.join(cwd, resources),
        end - 1 if args[end - 1] == "--" else end,
    )


def is_crun(low_level: str) -> bool:
    """Whether a low-level link is called with crun's command line, by its basename; else with runc's."""
    name = os.path.basename(low_level)
    return name.startswith("crun") or name == "krun"


def _table(values: str, flags: str = "", stops: str = "help", optional: str = "") -> _Table:
    kinds = ((_VALUE, values), (_FLAG, flags), (_STOP, stops), (_OPTIONAL, optional))
    return {name: kind for kind, names in kinds for name in names.split()}


# ---- runc ----

_RUNC_SHORT = {"b": "bundle", "d": "detach", "h": "help", "v": "version"}
_RUNC_GLOBAL = _table("log log-format root criu rootless", "debug systemd-cgroup", "help version")
_RUNC_CREATE = "bundle config console-socket pidfd-socket pid-file preserve-fds"
_RUNC: Mapping[str, _Table] = {
    "create": _table(_RUNC_CREATE, "no-pivot no-new-keyring"),
    "run": _table(_RUNC_CREATE, "no-pivot no-new-keyring detach keep no-subreaper"),
    "restore": _table(
        "bundle console-socket pid-file image-path work-path manage-cgroups-mode empty-ns lsm-profile"
        " lsm-mount-context",
        "detach no-subreaper no-pivot tcp-established ext-unix-sk shell-job file-locks auto-dedup lazy-pages",
    ),
}


def _parse_runc(args: Sequence[str], cwd: str, environ: Mapping[str, str], uid: int) -> Invocation | None:
    head = _scan_go(args, _RUNC_GLOBAL, in_order=True)
    if not head or not head[1] or head[1][0] not in _RUNC:
        return None
    subcommand, *tail = head[1]
    own = _RUNC[subcommand]
    # Until 1.4 options are moved to the front and parsing stops at the first other word; 1.5 takes them where they
    # stand, the global ones too.
    found = _scan_go(_options_first(tail, own), own, in_order=True)
    if not found or len(found[1]) != 1:
        found = _scan_go(tail, _RUNC_GLOBAL | own, in_order=False)
    if not found or len(found[1]) != 1:
        return None
    options = head[0] | found[0]
    log_format = options.get("log-format") or "text"
    if log_format not in ("text", "json"):
        return None
    bundle, config, log = _absolute(options.get("bundle"), cwd), options.get("config"), options.get("log")
    return Invocation(
        subcommand,
        container_id=found[1][0],
        bundle=bundle,
        config=os.path.join(cwd, config) if config else os.path.join(bundle, "config.json"),
        root=os.path.normpath(os.path.join(cwd, options.get("root", _runc_root(environ, uid)))),
        log=os.path.join(cwd, log) if log else None,
        log_format="json" if log_format == "json" else "text",
    )


def _runc_root(environ: Mapping[str, str], uid: int) -> str:
    """Only an ordinary user's XDG_RUNTIME_DIR counts (runc's rule for root in a user namespace is not followed)."""
    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    return runtime_dir + "/runc" if uid != 0 and runtime_dir else "/run/runc"


def _options_first(args: Sequence[str], table: _Table) -> list[str]:
    """The words as urfave/cli v1 orders them: options, each with the word after it unless that is one; the rest."""
    first: list[str] = []
    rest: list[str] = []
    value_may_follow = False
    for i, word in enumerate(args):
        if word.startswith("-") and _go_name(word)[0] in table:
            first.append(word)
            value_may_follow = "=" not in word
        elif value_may_follow:
            first.append(word)
            value_may_follow = False
        elif word == "--":
            return [*first, "--", *rest, *args[i + 1 :]]
        else:
            rest.append(word)
    return first + rest


def _go_name(word: str) -> tuple[str, str | None]:
    """The name and value of `-x`, `--x` or `--x=value`; the name of `---x` is `-x`, which no table has."""
    name, equals, value = word[2 if word.startswith("--") else 1 :].partition("=")
    return _RUNC_SHORT.get(name, name), value if equals else None


def _scan_go(args: Sequence[str], table: _Table, in_order: bool) -> _Scanned:
    """Go's flag package; with `in_order` the first word that is no option ends the options."""
    options: dict[str, str] = {}
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--" or (in_order and not _is_option(word)):
            rest += words if word == "--" else [word, *words]
            break
        if not _is_option(word):
            rest.append(word)
            continue
        name, value = _go_name(word)
        kind = table.get(name, -1)
        if kind == _VALUE:
            value = next(words, None) if value is None else value
        elif value is None or value == "":
            value = "true"  # runc 1.5 takes `--debug=` too
        if kind < 0 or value is None or (kind != _VALUE and value not in _TRUE | _FALSE):
            return None
        options[name] = value
    if any(kind == _STOP and options.get(name) in _TRUE for name, kind in table.items()):
        return None
    return options, rest


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


# ---- crun ----


def _argp_table(values: str, flags: str, stops: str = "") -> _Table:
    return _table(f"{values} program-name", flags, f"{stops} help usage", "HANG")  # argp adds these four everywhere


_CRUN_GLOBAL = _argp_table("cgroup-manager log log-format log-level root rootless", "debug systemd-cgroup", "version")
_CRUN_CREATE = "bundle config console-socket pid-file preserve-fds"
_CRUN: Mapping[str, _Table] = {
    "create": _argp_table(_CRUN_CREATE, "no-new-keyring no-pivot no-subreaper"),
    "run": _argp_table(_CRUN_CREATE, "no-new-keyring no-pivot no-subreaper detach keep"),
    "restore": _argp_table(
        "bundle console-socket pid-file image-path work-path manage-cgroups-mode network-lock lsm-profile"
        " lsm-mount-context",
        "detach tcp-established tcp-close ext-unix-sk shell-job file-locks",
    ),
}
_CRUN_UPDATE = _argp_table(
    "resources blkio-weight cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-share cpuset-cpus cpuset-mems"
    " kernel-memory kernel-memory-tcp memory memory-reservation memory-swap pids-limit l3-cache-schema mem-bw-schema",
    "",
)
_CRUN_SHORT = {
    "b": "bundle",
    "f": "config",
    "d": "detach",
    "r": "resources",
}  # and -v, -V, -?: crun prints something and exits
# An abbreviation that fits both is not ambiguous and means the second: before crun 1.22 --rootless had the key of
# --root, and the others are younger than crun 1.8.
_LIKE = {"rootless": "root", "log-level": "log-format", "tcp-close": "tcp-established"}


def _parse_crun(args: Sequence[str], cwd: str, environ: Mapping[str, str]) -> Invocation | None:
    head = _scan_argp(args, _CRUN_GLOBAL)
    if not head or not head[1] or head[1][0] not in _CRUN:
        return None
    subcommand, *tail = head[1]
    found = _scan_argp(tail, _CRUN[subcommand])
    if not found or len(found[1]) not in ((1, 2) if subcommand == "restore" else (1,)):
        return None
    options = head[0] | found[0]
    log_format = options.get("log-format", "text")
    if log_format not in ("text", "json") or "" in (options.get("bundle"), options.get("config")):
        return None
    bundle, config = _absolute(options.get("bundle"), cwd), options.get("config", "config.json")
    return Invocation(
        subcommand,
        container_id=found[1][0],
        bundle=bundle,
        config=os.path.join(bundle if config == "config.json" else cwd, config),
        # crun looks at both after it has gone to the bundle
        root=_absolute(options.get("root", _crun_root(environ)), bundle),
        log=_crun_log(options.get("log"), bundle),
        log_format="json" if log_format == "json" else "text",
    )


def _crun_root(environ: Mapping[str, str]) -> str:
    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    return f"{runtime_dir}/crun" if runtime_dir else "/run/crun"


def _crun_log(log: str | None, bundle: str) -> str | None:
    if not log or log.startswith(("journald:", "syslog:")):
        return None
    return os.path.join(bundle, log.removeprefix("file:"))


def _scan_argp(args: Sequence[str], table: _Table) -> _Scanned:
    """GNU argp with ARGP_IN_ORDER: the first word that is no option ends the options."""
    options: dict[str, str] = {}
    words = iter(args)
    for word in words:
        if word == "--" or not _is_option(word):
            return options, [*words] if word == "--" else [word, *words]
        found = _long_option(word, table) if word.startswith("--") else _short_options(word, table)
        for name, value in found:
            kind = table.get(name, _STOP)
            if kind == _VALUE and value is None:
                value = next(words, None)
            if kind == _STOP or (kind == _VALUE and value is None) or (kind == _FLAG and value is not None):
                return None
            options[name] = value or ""
    return options, []


def _long_option(word: str, table: _Table) -> list[tuple[str, str | None]]:
    name, equals, value = word[2:].partition("=")
    fitting = [option for option in table if option.startswith(name)]
    if name not in table and fitting and all(_LIKE.get(option) == fitting[0] for option in fitting[1:]):
        name = fitting[0]
    return [(name, value if equals else None)]


def _short_options(word: str, table: _Table) -> list[tuple[str, str | None]]:
    """`-db DIR`, `-dbDIR`: the letters up to one that takes a value, which is the rest of the word or the next."""
    found: list[tuple[str, str | None]] = []
    for i, letter in enumerate(word[1:], start=2):
        name = _CRUN_SHORT.get(letter, "")
        if table.get(name) == _VALUE:
            return [*found, (name, word[i:] or None)]
        found.append((name, None))
    return found


def _absolute(path: str | None, base: str) -> str:
    return base if path in (None, "", ".") else os.path.join(base, path)
