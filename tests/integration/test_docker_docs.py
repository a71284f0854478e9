"""docs/docker.md, followed from top to bottom: every file in it is written, every command in it is run."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers.docker import BOX, ENVIRONMENT, SETTINGS, Docker
from drivers.host import CHECKOUT, Done

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "cc", "docker-compose")

PAGE = (CHECKOUT / "docs/docker.md").read_text()
FENCE = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
MACHINE_FILE = Path("/etc/gpulatch/machine.json")
REFUSED = "# refused"
# Last on PATH: the machine's own programs there must not stand before Debian's Docker.
ENV = {**ENVIRONMENT, "PATH": f"{ENVIRONMENT['PATH']}:/usr/local/bin"}
# What stands for something else here: Docker's plugin is an older program of the same words in Debian 12.
MEANT = {
    "IMAGE": BOX,
    "docker compose ": "docker-compose --project-name documented --file /run/compose/docker-compose.yml ",
}
MADE = (
    "/usr/lib/gpulatch",
    "/usr/lib/tmpfiles.d/gpulatch.conf",
    "/usr/bin/nvidia-container-runtime-hook",
    "/usr/local/bin/gpulatch",
    "/run/gpulatch",
    "/etc/gpulatch",
)
WRITTEN_TO = {"docker-compose.yml": "/run/compose/docker-compose.yml"}


def blocks() -> list[tuple[str, str, str]]:
    """File name (or nothing), language and text of every block, in order."""
    return [(name, language, text) for name, language, text in FENCE.findall(PAGE)]


def meant(text: str) -> str:
    for word, other in MEANT.items():
        text = text.replace(word, other)
    return text


class Reader:
    """Somebody who does what the page says."""

    def __init__(self, docker: Docker) -> None:
        self.docker = docker

    def write(self, name: str, text: str) -> None:
        path = Path(WRITTEN_TO.get(name, name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(meant(text))

    def run(self, line: str) -> Done:
        if line == "systemctl restart docker":  # there is no init system in the sandbox
            self.docker.stop()
            self.docker.start_as_configured()
            return Done(line, 0, "", "")
        return self.docker.host.run(["bash", "-euc", meant(line)], env=ENV, cwd=CHECKOUT)


@pytest.fixture
def reader(dockerd: Docker) -> Iterator[Reader]:
    """On a host where gpulatch was never installed."""
    dockerd.stop()
    assert dockerd.uninstall().returncode == 0
    SETTINGS.unlink()
    dockerd.start_as_configured()
    nvlinks = MACHINE_FILE.read_bytes()
    yield Reader(dockerd)
    MACHINE_FILE.parent.mkdir(exist_ok=True)
    MACHINE_FILE.write_bytes(nvlinks)
    dockerd.remove_all()
    dockerd.install()
    dockerd.restart()


def test_every_block_is_one_that_the_reader_understands() -> None:
    assert len(blocks()) > 12
    assert PAGE.count("```") == 2 * len(blocks())
    for name, language, _ in blocks():
        assert (language == "sh") != bool(name)


def test_the_page_works_from_top_to_bottom(reader: Reader) -> None:
    ran = 0
    for name, _, text in blocks():
        if name:
            reader.write(name, text)
            continue
        for line in text.splitlines():
            done = reader.run(line)
            told = f"{line}: {done.stdout}{done.stderr}"
            assert done.returncode == (125 if line.endswith(REFUSED) else 0), told
            assert (": gpulatch: GPU " in done.stderr) == line.endswith(REFUSED), told
            check(line, done, reader.docker)
            ran += 1
    assert ran > 25
    assert [path for path in MADE if os.path.lexists(path)] == []
    reader.docker.run("run", "--rm", BOX, "true")


def check(line: str, done: Done, docker: Docker) -> None:
    """What the page promises beside a command."""
    if line.startswith("gpulatch claims"):
        assert "trainer" in done.stdout
    elif line.startswith("docker inspect"):
        assert "held by container one (" in done.stdout
    elif "--name rest" in line:
        held = docker.held()
        assert held["one"] == [4]
        assert held["guest"] == [6, 7]
        assert len(held["trainer"]) == len(held["pair"]) == 2
        assert held["rest"] == [gpu for gpu in range(8) if gpu not in held["trainer"] + held["pair"] + held["one"]]
    elif line == "docker start pair":
        assert set(docker.held()) == {"trainer", "one", "pair", "guest", "rest"}
    elif line.startswith("docker compose up"):
        (claim,) = docker.host.claims()
        assert (claim["source"], len(claim["devices"])) == ("docker DeviceRequests", 2)
    elif line.endswith("--name web IMAGE"):
        assert list(docker.held()) == ["trainer"]


@pytest.mark.parametrize("form", re.findall(r"^\| `(-.*?)`(?:, `(-.*?)`)? \|", PAGE, re.MULTILINE), ids=" ".join)
def test_every_form_of_the_table_starts_a_container(docker: Docker, form: tuple[str, str]) -> None:
    for number, options in enumerate(form):
        if options:
            node = f"/dev/nvidia{docker.gpus[0]['minor']}"
            line = f"docker run -d --name box{number} --runtime gpulatch {options.replace('/dev/nvidia0', node)} {BOX}"
            done = docker.host.run(["bash", "-euc", line], env=ENV)
            assert done.returncode == 0, done.stderr


def test_the_compose_file_is_the_request_that_docker_records(docker: Docker) -> None:
    (text,) = [text for name, _, text in blocks() if name == "docker-compose.yml"]
    Reader(docker).write("docker-compose.yml", text)
    compose = meant("docker compose ").split()
    shown = docker.host.run([*compose, "config"], env=ENV)
    assert shown.returncode == 0, shown.stderr
    assert docker.host.run([*compose, "up", "--detach"], env=ENV).returncode == 0
    (name,) = docker.held()
    (request,) = docker.inspect(name)["HostConfig"]["DeviceRequests"]
    assert (request["Driver"], request["Count"], request["Capabilities"]) == ("nvidia", 2, [["gpu"]])
    assert docker.opens(name) == docker.held()[name]
    assert docker.host.run([*compose, "down"], env=ENV).returncode == 0
