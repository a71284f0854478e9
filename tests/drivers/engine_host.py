"""A host that carries every engine at once: a simulated DGX A100, the engines in its /usr, gpulatch installed."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from drivers import usr_overlay
from drivers.host import CHECKOUT, Done, Host
from drivers.usr_overlay import CRUN, RUNC

WORK = Path("/run/test-engines")
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(WORK), "TMPDIR": str(WORK), "LANG": "C.UTF-8"}
LAUNCHERS = Path("/usr/lib/gpulatch/bin")
SETTINGS = Path("/etc/gpulatch/config.toml")

ON_RUNC, ON_CRUN = "gpulatch", "gpulatch-crun"
LOW_LEVEL = {ON_RUNC: RUNC, ON_CRUN: CRUN}


class EngineHost:
    """One machine with gpulatch installed under some runtime names; `close` takes all of it away.

    A driver of an engine is made on it and closed before it.
    """

    def __init__(self, runtimes: Mapping[str, Path]) -> None:
        self.runtimes = runtimes
        with ExitStack() as undo:
            self.host = Host()
            undo.callback(self.host.close)
            usr_overlay.mount()
            undo.callback(usr_overlay.unmount)
            WORK.mkdir()
            undo.callback(self.host.run, ["rm", "-rf", str(WORK)])
            for name in runtimes:
                self.install(name)
            self.gpus: list[dict[str, Any]] = json.loads(checked(self.host.gpulatch("probe", "--json")).stdout)["gpus"]
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def install(self, name: str = ON_RUNC) -> Done:
        """Install gpulatch as its documents say."""
        command = [str(CHECKOUT / "packaging/install"), name, str(self.runtimes[name])]
        return checked(self.host.run(command, env=ENVIRONMENT))

    def uninstall(self, name: str = ON_RUNC) -> Done:
        return self.host.run([str(CHECKOUT / "packaging/uninstall"), name], env=ENVIRONMENT)


def checked(done: Done, more: str = "") -> Done:
    """A command that must have succeeded; `more` is shown when it has not."""
    assert done.returncode == 0, f"{done.args}: {done.stdout}{done.stderr}\n{more}"
    return done
