"""What real runtimes print for `--version`, and what follows from it."""

import pytest

from runtime_wrapper.operate import runtime_version
from runtime_wrapper.operate.runtime_version import Key

RUNC_REST = "commit: v1.1.0-0-gabc\nspec: 1.0.2-dev\ngo: go1.19.8\nlibseccomp: 2.5.4\n"
CRUN_REST = (
    "commit: f8a096be060b22ccd3d5f3ebe44108517fbf6c30\nspec: 1.0.0\n+SYSTEMD +SELINUX +APPARMOR +CAP +SECCOMP +EBPF\n"
)
NVIDIA = "NVIDIA Container Runtime version 1.13.5\ncommit: 6b8589dcb4dead72\nspec: 1.0.2-dev\n\nrunc version 1.1.7\n"

# output, program, version, its key; whether it is too old
READ: list[tuple[str, str, str, Key | None, bool]] = [
    (f"runc version 1.0.0-rc93\n{RUNC_REST}", "runc", "1.0.0-rc93", (1, 0, 0, 0), True),
    (f"runc version 1.0.0~rc93+ds1\n{RUNC_REST}", "runc", "1.0.0~rc93+ds1", (1, 0, 0, 0), True),
    (f"runc version 1.0.3\n{RUNC_REST}", "runc", "1.0.3", (1, 0, 3, 1), False),
    (f"runc version 1.1.5+ds1\n{RUNC_REST}", "runc", "1.1.5+ds1", (1, 1, 5, 1), False),
    (f"runc version 1.2.0-rc.1\n{RUNC_REST}", "runc", "1.2.0-rc.1", (1, 2, 0, 0), False),
    (f"runc version 1.3.0\n{RUNC_REST}", "runc", "1.3.0", (1, 3, 0, 1), False),
    (f"runc version 1.5.0-rc.1\n{RUNC_REST}", "runc", "1.5.0-rc.1", (1, 5, 0, 0), False),
    (f"runc version 1.4.0+dev\n{RUNC_REST}", "runc", "1.4.0+dev", (1, 4, 0, 1), False),
    ("runc version unknown\nspec: 1.2.0\n", "runc", "unknown", None, False),
    ("runc version \nspec: 1.2.0\n", "runc", "", None, False),
    (f"crun version 0.17\n{CRUN_REST}", "crun", "0.17", (0, 17, 0, 1), True),
    (f"crun version 1.0\n{CRUN_REST}", "crun", "1.0", (1, 0, 0, 1), False),
    (f"crun version 1.8.1\n{CRUN_REST}", "crun", "1.8.1", (1, 8, 1, 1), False),
    (f"crun version 1.8.1.0.0.0.25-f8a0\n{CRUN_REST}", "crun", "1.8.1.0.0.0.25-f8a0", (1, 8, 1, 1), False),
    (f"crun version 1.27.1\n{CRUN_REST}", "crun", "1.27.1", (1, 27, 1, 1), False),
    (NVIDIA, "runc", "1.1.7", (1, 1, 7, 1), False),
    ("youki version: 0.3.3\ncommit: 0.3.3-0-g1b2b7a1\n", "youki", "0.3.3", (0, 3, 3, 1), False),
    ("runsc version release-20230904.0\nspec: 1.1.0-rc.1\n", "runsc", "release-20230904.0", None, False),
]

UNREADABLE = [
    "",
    "\n\n",
    "true (GNU coreutils) 9.1\nCopyright (C) 2022 Free Software Foundation, Inc.\n",
    "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)\n",
    "kata-runtime  : 3.2.0\n   commit   : abc\n",
    "unknown flag: --version",
    "\x1b[31mrunc version 1.1.5",
    "\ufffd\ufffd\x00\x01",
    "x" * 65536,
]


@pytest.mark.parametrize(("output", "program", "text", "key", "old"), READ, ids=[entry[0][:30] for entry in READ])
def test_a_version_is_read_from_what_real_runtimes_print(
    output: str, program: str, text: str, key: Key | None, old: bool
) -> None:
    version = runtime_version.read(output)
    assert version is not None
    assert (version.program, version.text, version.key) == (program, text, key)
    assert runtime_version.too_old(version) == old


@pytest.mark.parametrize("output", UNREADABLE, ids=lambda text: repr(text[:20]))
def test_other_output_holds_no_version(output: str) -> None:
    assert runtime_version.read(output) is None


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("runc version 1.1.2", ["1.2.5"]),
        ("runc version 1.1.3", ["1.1.7", "1.2.5"]),
        ("runc version 1.1.6+ds1", ["1.1.7", "1.2.5"]),
        ("runc version 1.1.7", ["1.2.5"]),
        ("runc version 1.2.4", ["1.2.5"]),
        ("runc version 1.2.5", []),
        ("runc version 1.5.0-rc.1", []),
        ("runc version unknown", []),
        ("crun version 1.17", []),
        ("crun version 1.18", ["1.18.2"]),
        ("crun version 1.18.1", ["1.18.2"]),
        ("crun version 1.18.2", []),
        ("youki version 1.1.4", []),
    ],
)
def test_known_faults_of_a_version_say_which_one_is_free_of_them(output: str, words: list[str]) -> None:
    version = runtime_version.read(output)
    assert version is not None
    found = runtime_version.faults(version)
    assert [word in text for word, text in zip(words, found, strict=True)] == [True] * len(words)
