#!/usr/bin/python3 -ISB
"""Stands in for a runtime where the machine cannot give what engines ask for: leaves that out, becomes the real one.

Reads what the machine lacks from a file beside the real runtime, which `usr_overlay` puts there.
"""

import json
import os
import resource
import sys
from typing import Any

REAL = "/usr/libexec/test-real-runtimes"

Json = dict[str, Any]


def main(words: list[str]) -> None:
    real = f"{REAL}/{os.path.basename(sys.argv[0])}"
    with open(f"{real}.json") as file:
        lacking = json.load(file)
    if "create" in words or "run" in words:
        rewrite(os.path.join(value(words, "--bundle"), "config.json"), lacking)
    elif "exec" in words and value(words, "--process"):
        rewrite(value(words, "--process"), lacking)
    elif "update" in words and value(words, "--resources"):
        rewrite(value(words, "--resources"), lacking)
    if lacking["preloaded"]:
        os.environ["LD_PRELOAD"] = lacking["preloaded"]
    os.execv(real, sys.argv)


def value(words: list[str], option: str) -> str:
    """What follows an option, after a blank or `=`; empty when it is not there."""
    for i, word in enumerate(words):
        if word == option or word.startswith(f"{option}="):
            return word.partition("=")[2] or words[i + 1]
    return ""


def rewrite(path: str, lacking: Json) -> None:
    """Take out of a spec, a process or resources what the machine lacks; `-` is the standard input."""
    if path == "-":
        data = json.load(sys.stdin)
        os.dup2(os.memfd_create("resources"), 0)
        path = "/proc/self/fd/0"
    else:
        with open(path) as file:
            data = json.load(file)
    strip_resources(data.get("linux", {}).get("resources", {}), lacking["resources"])
    strip_resources(data, lacking["resources"])
    strip_process(data.get("process", data), lacking["capabilities"])
    with open(path, "w") as file:
        json.dump(data, file)


def strip_resources(resources: Json, names: list[str]) -> None:
    for name in names:
        resources.pop(name, None)


def strip_process(process: Json, capabilities: list[str]) -> None:
    """Capabilities, and what root may do only with CAP_SYS_RESOURCE."""
    if not capabilities:
        return
    for kind, names in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in names or [] if name not in capabilities]
    if "rlimits" in process:
        process["rlimits"] = [limit for limit in process["rlimits"] or [] if not too_high(limit)]
    if (process.get("oomScoreAdj") or 0) < 0:
        del process["oomScoreAdj"]


def too_high(limit: Json) -> bool:
    hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
    return hard != resource.RLIM_INFINITY and limit["hard"] > hard


if __name__ == "__main__":
    main(sys.argv[1:])
