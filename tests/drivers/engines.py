"""The four engines of one host together: a container of any of them that asks by a variable."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from drivers.containerd import Containerd
from drivers.cri import CallError, Cri, Pod
from drivers.docker import Docker
from drivers.engine import Engine, at_once
from drivers.engine_host import EngineHost
from drivers.podman import Podman


@dataclass
class Engines:
    """The four engines of one host."""

    machine: EngineHost
    docker: Docker
    containerd: Containerd
    cri: Cri
    podman: Podman

    def all(self) -> dict[str, Docker | Containerd | Cri | Podman]:
        return {"docker": self.docker, "ctr": self.containerd, "cri": self.cri, "podman": self.podman}

    def ask(self, name: str, engine: Engine, wish: str, runtime: str) -> str | None:
        """Start a container that asks by a variable; what its user is told when it is refused."""
        if isinstance(engine, Cri):
            return _answer(engine, name, wish, engine.run_pod(f"pod-{name}", runtime))
        done = engine.call(*engine.start_words(name, "--env", wish, runtime=runtime))
        return done.stderr if done.returncode else None

    def ask_at_once(self, askers: list[tuple[str, Engine, str, str]]) -> dict[str, str | None]:
        """The same for many containers at the same time: what each is told."""
        of_pods = [asker for asker in askers if isinstance(asker[1], Cri)]
        others = [asker for asker in askers if asker not in of_pods]
        pods = [engine.run_pod(f"pod-{name}", runtime) for name, engine, _, runtime in of_pods]
        commands = [
            [*engine.program, *engine.start_words(name, "--env", wish, runtime=runtime)]
            for name, engine, wish, runtime in others
        ]
        with ThreadPoolExecutor(len(pods)) as pool:
            told = [
                pool.submit(_answer, engine, name, wish, pod)
                for (name, engine, wish, _), pod in zip(of_pods, pods, strict=True)
            ]
            done = at_once(commands)
            answers = {asker[0]: answer.result() for asker, answer in zip(of_pods, told, strict=True)}
        return answers | {
            asker[0]: answer.stderr if answer.returncode else None for asker, answer in zip(others, done, strict=True)
        }

    def remove_all(self) -> None:
        for engine in self.all().values():
            engine.remove_all()


def _answer(cri: Cri, name: str, wish: str, pod: Pod) -> str | None:
    try:
        cri.started(name, wish, pod=pod)
    except CallError as error:
        return str(error)
    return None
