"""containerd's CRI plugin, driven as a kubelet does it: pods of one sandbox and some containers, by gRPC.

Pods have the host's network, so that no network plugin is needed. A container has a pod of its own unless said.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc

from drivers.containerd import SOCKET, Containerd
from drivers.engine import BOX, Engine, wait_until
from drivers.engine_host import ON_RUNC
from drivers.host import TIMEOUT_S

# Made of cri.proto when this module is imported; the path is one below an entry of sys.path.
messages, services = grpc.protos_and_services("drivers/cri.proto")

NAMESPACE = "k8s.io"


@dataclass(frozen=True, slots=True)
class Pod:
    """A sandbox that runs, and the configuration that it was made of."""

    id: str
    config: Any


class CallError(Exception):
    """The plugin's answer to a call that failed, as kubelet reports it."""


class Cri(Engine):
    """The pods of one containerd; `close` removes them and leaves containerd running."""

    def __init__(self, containerd: Containerd) -> None:
        super().__init__(containerd.machine)
        self.containerd, self.log = containerd, containerd.log
        self._containers: dict[str, tuple[Pod, str]] = {}
        self._pods: dict[str, int] = {}
        with ExitStack() as undo:
            channel = undo.enter_context(grpc.insecure_channel(f"unix://{SOCKET}"))
            self._service = services.RuntimeServiceStub(channel)
            self.wait_for_plugin()
            undo.callback(self.remove_all)
            containerd.load_images(NAMESPACE)
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def wait_for_plugin(self) -> None:
        """Wait until the plugin answers, also after containerd was started anew."""
        wait_until(self._answers)

    def _answers(self) -> bool:
        """Whether the plugin is ready; it begins to listen before it is."""
        try:
            self._service.Version(messages.VersionRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.details() != "server is not initialized yet":
                raise
            return False
        return True

    # pods

    def run_pod(self, name: str, runtime: str = ON_RUNC, annotations: Mapping[str, str] | None = None) -> Pod:
        """Start a pod's sandbox. Raises CallError."""
        number = self._pods[name] = self._pods.get(name, -1) + 1
        config = messages.PodConfig(
            metadata=messages.PodMetadata(name=name, uid=f"{name}-{number}", namespace="tests", attempt=number),
            annotations=annotations or {},
            linux=messages.LinuxPod(security_context=messages.PodSecurity(namespace_options=_host_network())),
        )
        answer = self._call("RunPodSandbox", messages.RunPodSandboxRequest(config=config, runtime_handler=runtime))
        return Pod(answer.pod_sandbox_id, config)

    def remove_pod(self, pod: str) -> None:
        """Stop and remove a pod by its id, with every container in it."""
        self._call("StopPodSandbox", messages.PodRequest(pod_sandbox_id=pod))
        self._call("RemovePodSandbox", messages.PodRequest(pod_sandbox_id=pod))
        self._containers = {name: found for name, found in self._containers.items() if found[0].id != pod}

    def pods(self) -> list[str]:
        return [pod.id for pod in self._call("ListPodSandbox", messages.Nothing()).items]

    def remove_all(self) -> None:
        for pod in self.pods():
            self.remove_pod(pod)

    # containers

    def started(self, name: str, *env: str, image: str = BOX, runtime: str = ON_RUNC, pod: Pod | None = None) -> str:
        """Run a container that sleeps, with these variables; its id. Raises CallError."""
        self.create(name, *env, image=image, pod=pod or self.run_pod(f"pod-{name}", runtime))
        self.start(name)
        return self.id(name)

    def create(
        self,
        name: str,
        *env: str,
        pod: Pod,
        image: str = BOX,
        command: Sequence[str] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Make a container, which does not call the runtime yet; one of the same name in that pod is forgotten."""
        pairs = (entry.split("=", 1) for entry in env)
        security = messages.ContainerSecurity(namespace_options=_host_network())
        config = messages.ContainerConfig(
            metadata=messages.ContainerMetadata(name=name),
            image=messages.Image(image=f"localhost/{image}:latest"),
            command=command,
            envs=[messages.Variable(key=key, value=value) for key, value in pairs],
            annotations=annotations or {},
            linux=messages.LinuxContainer(security_context=security),
        )
        asked = messages.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        self._containers[name] = (pod, self._call("CreateContainer", asked).container_id)

    def start(self, name: str) -> None:
        """Start a container that was created. Raises CallError."""
        self._call("StartContainer", self._named(name))

    def stop(self, name: str) -> None:
        """End a container at once."""
        self._call("StopContainer", messages.StopContainerRequest(container_id=self.id(name), timeout=0))

    def remove(self, name: str) -> None:
        self._call("RemoveContainer", self._named(name))

    def update(self, name: str, cpu_shares: int) -> None:
        resources = messages.Resources(cpu_shares=cpu_shares)
        asked = messages.UpdateContainerResourcesRequest(container_id=self.id(name), linux=resources)
        self._call("UpdateContainerResources", asked)

    def execute(self, name: str, *command: str) -> tuple[int, str]:
        """Run a command in a container; its exit code and what it printed."""
        asked = messages.ExecSyncRequest(container_id=self.id(name), cmd=command, timeout=int(TIMEOUT_S))
        answer = self._call("ExecSync", asked)
        return answer.exit_code, answer.stdout.decode()

    def status(self, name: str) -> Any:
        """State, exit code, reason and message of a container."""
        return self._call("ContainerStatus", messages.ContainerStatusRequest(container_id=self.id(name))).status

    def has_ended(self, name: str) -> bool:
        return bool(self.status(name).state == messages.EXITED)

    def inside(self, name: str, *command: str) -> str:
        code, text = self.execute(name, *command)
        assert code == 0, text
        return text

    def pid(self, name: str) -> int:
        asked = messages.ContainerStatusRequest(container_id=self.id(name), verbose=True)
        pid: int = json.loads(self._call("ContainerStatus", asked).info["info"])["pid"]
        return pid

    def id(self, name: str) -> str:
        return self._containers[name][1]

    def name_of(self, claim: dict[str, Any]) -> str:
        names = {found[1]: name for name, found in self._containers.items()}
        return str(names.get(claim["id"], claim["id"]))

    def _named(self, name: str) -> Any:
        return messages.ContainerRequest(container_id=self.id(name))

    def _call(self, method: str, message: Any) -> Any:
        try:
            return getattr(self._service, method)(message, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise CallError(error.details()) from error


def _host_network() -> Any:
    return messages.Namespaces(network=messages.NODE)
