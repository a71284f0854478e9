"""The variables in which a container can ask for GPUs, and what each of them says.

Hot and pure. The rules for NVIDIA's variables are those of its runtime (internal/config/image of its toolkit).
"""

from collections.abc import Iterator, Mapping

OWN = "GPULATCH_GPUS"
OWN_PREFIX = "GPULATCH_REQ_"
NVIDIA = "NVIDIA_VISIBLE_DEVICES"
SWARM_PREFIX = "DOCKER_RESOURCE_"
MIG_PROFILE = "NVIDIA_MIG_CONFIG"
CUDA_VERSION, CUDA_REQUIREMENT = "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"

Environment = Mapping[str, str]
Said = Iterator[tuple[str, str]]
"""Where something is said, for people, and what."""


def own(environment: Environment) -> Said:
    """`GPULATCH_GPUS` and each `GPULATCH_REQ_*`, as one request for all of them.

    The latter are for devices of a CDI spec: each device sets a variable of its own, so that several add up.
    """
    names = [name for name in environment if name == OWN or name.startswith(OWN_PREFIX)]
    if names:
        yield f"env {', '.join(names)}", ",".join(environment[name] for name in names)


def nvidia(environment: Environment) -> Said:
    """`NVIDIA_VISIBLE_DEVICES`."""
    if NVIDIA in environment:
        yield f"env {NVIDIA}", environment[NVIDIA]


def swarm(environment: Environment) -> Said:
    """The generic resources that Swarm gave to a task (moby, daemon/cluster/executor/container), each by itself.

    Which of them are GPUs is a setting. An empty one says `void`, as in NVIDIA's runtime: the task got none.
    """
    for name, text in environment.items():
        if name.startswith(SWARM_PREFIX):
            yield f"env {name}", text if text.strip(" ,") else "void"


def mig_profile(environment: Environment) -> Said:
    """`NVIDIA_MIG_CONFIG`: MIG instances by their profiles."""
    profiles = [profile.strip() for profile in environment.get(MIG_PROFILE, "").split(",")]
    yield f"env {MIG_PROFILE}", ",".join(f"mig:{profile}" for profile in profiles if profile)


def legacy_image(environment: Environment) -> Said:
    """The image of an old CUDA: it has no variable for its GPUs and means all of them."""
    if is_legacy(environment) and NVIDIA not in environment:
        yield f"env {CUDA_VERSION}", "all"


def is_legacy(environment: Environment) -> bool:
    """Whether the image was made before NVIDIA's images said what they require."""
    return bool(environment.get(CUDA_VERSION)) and not environment.get(CUDA_REQUIREMENT)
