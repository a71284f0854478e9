"""The child process that `snapshot` starts: probes this host and prints one JSON line, the result or the refusal.

Usage: child.py PROC SYSFS MACHINE_FILE DEV LD_CACHE PROGRAM_FOLDERS. Also makes the device nodes that are missing. It
is a process of its own because a broken driver can hold its reader in the kernel for ever, where no signal and no timer
of the reader helps.
"""

import contextlib
import json
import os
import sys

# -I leaves the folder of this package off the path.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.probe import host, nodes


def main(argv: list[str]) -> int:
    """Print `{"fingerprint", "inventory"}` or `{"error": {"code", "what", "where", "why", "hint"}}`.

    The fingerprint is taken first: a change during the probe then makes the result stale, never wrong.
    """
    roots = host.Roots(*argv)
    try:
        with contextlib.suppress(OSError):  # the create that needs a node says so if it is still missing
            nodes.make_missing(roots.proc, roots.dev)
        found = {"fingerprint": host.fingerprint(roots), "inventory": host.probe(roots).to_json()}
    except GpulatchError as error:
        parts = {key: getattr(error, key) for key in ("code", "what", "where", "why", "hint")}
        found = {"error": parts}
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
