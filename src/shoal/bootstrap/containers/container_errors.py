"""What a container engine's complaints mean: a table from its words to what failed, why, and the
fix. Docker's and podman's differ, and both change over the years, so a few words have to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.core.errors import ConfigError, SetupError, ShoalError
from shoal.spec.cluster_spec import ContainerSpec


@dataclass(frozen=True)
class Case:
    """Who complains: the engine's container as it was asked for, on this node, for this user."""

    node: str
    container: ContainerSpec
    user: str = ""

    @property
    def engine(self) -> str:
        return self.container.engine

    @property
    def image(self) -> str:
        return self.container.image


_Maker = Callable[[Case, Sequence[str]], ShoalError]

NOT_INSTALLED = 127


def no_engine(case: Case, code: int, said: Sequence[str]) -> ShoalError:
    """Why the engine cannot be used."""
    if code == NOT_INSTALLED:
        return _not_installed(case, said)
    return _match(_ENGINE, case, said) or SetupError(
        f"{case.engine} does not work on the machine",
        why=_last(said),
        fix=f"see what it says there: {case.engine} info",
        node=case.node,
        output=said,
    )


def is_forbidden(said: Sequence[str]) -> bool:
    """Whether the engine would do it, but not for this user."""
    return _has(said, "permission denied")


def no_image(case: Case, said: Sequence[str]) -> ShoalError:
    """Why an image could not be pulled."""
    return _match(_PULL, case, said) or SetupError(
        f"the image {case.image} could not be pulled",
        why=_last(said),
        node=case.node,
        output=said,
    )


def no_container(case: Case, said: Sequence[str]) -> ShoalError:
    """Why a container could not be made."""
    return _match(_RUN, case, said) or SetupError(
        f"no container could be made from {case.image}",
        why=_last(said),
        fix="see docker.run_options, and the image",
        node=case.node,
        output=said,
    )


def ended_at_once(case: Case, code: str, said: Sequence[str]) -> ShoalError:
    """A container that did not stay."""
    return SetupError(
        f"the container {case.container.name} ended at once, with exit code {code}",
        why=_last(said) if said else f"{case.image} runs something else than the shell it is given",
        fix="take an image without an ENTRYPOINT of its own, or add to docker.run_options: "
        "--entrypoint=",
        node=case.node,
        output=said,
    )


def too_large(case: Case, needed: int, free: int) -> ShoalError:
    """An image for which the machine's disk has no room."""
    return SetupError(
        f"the image {case.image} does not fit on the machine's disk",
        why=f"pulling it takes at least {_gib(needed)}, and {_gib(free)} are free where "
        f"{case.engine} keeps its images",
        fix=f"make room there ({case.engine} system prune), take a larger disk or a smaller image",
        node=case.node,
    )


def name_taken(case: Case) -> ShoalError:
    """Someone else's container has the name."""
    name = case.container.name
    return ConfigError(
        f"the machine has a container {name} that is not Shoal's",
        why="docker.container_name names it, and what runs in it would be lost",
        fix=f"choose another name, or remove it there: {case.engine} rm -f {name}",
        node=case.node,
    )


def _not_installed(case: Case, said: Sequence[str]) -> ShoalError:
    install = "sudo apt-get update, sudo apt-get install -y podman"
    if case.engine == "docker":
        install = "sudo apt-get update, sudo apt-get install -y docker.io, "
        install += "sudo usermod -aG docker $USER"
    return SetupError(
        f"the machine has no {case.engine}",
        why="the docker section asks for containers",
        fix=f"install it first: initialization_commands: [{install}]",
        node=case.node,
        output=said,
    )


def _not_in_the_group(case: Case, said: Sequence[str]) -> ShoalError:
    return SetupError(
        f"{case.user or 'the user'} may not use docker on the machine",
        why="only root and members of the group docker may",
        fix=f"initialization_commands: [sudo usermod -aG docker {case.user or '$USER'}]",
        node=case.node,
        output=said,
    )


def _not_running(case: Case, said: Sequence[str]) -> ShoalError:
    return SetupError(
        "docker is not running on the machine",
        why="it is installed, but its daemon does not answer",
        fix="initialization_commands: [sudo systemctl start docker]",
        node=case.node,
        output=said,
    )


def _no_such_image(case: Case, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"there is no image {case.image}",
        why="its registry has none of that name, or shows it only to those who log in",
        fix="correct the name in the docker section; shoal.registry logs in to a private registry",
        node=case.node,
        output=said,
    )


def _not_an_image_name(case: Case, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"{case.image} is no name of an image",
        why=_last(said),
        fix="correct it in the docker section: [registry/]name[:tag]",
        node=case.node,
        output=said,
    )


def _login_refused(case: Case, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"the registry of {case.image} does not let us in",
        why=_last(said),
        fix="see shoal.registry: its server, username and password",
        node=case.node,
        output=said,
    )


def _registry_silent(case: Case, said: Sequence[str]) -> ShoalError:
    return SetupError(
        f"the registry of {case.image} cannot be reached from the machine",
        why=_last(said),
        fix="check the name and the machine's way out; with pull_before_run: false an image that "
        "is there already is used",
        node=case.node,
        output=said,
    )


def _disk_full(case: Case, said: Sequence[str]) -> ShoalError:
    return SetupError(
        f"the machine's disk is full, and {case.image} does not fit",
        why=_last(said),
        fix=f"make room there ({case.engine} system prune), or take a larger disk",
        node=case.node,
        output=said,
    )


def _no_bash(case: Case, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"the image {case.image} has no bash",
        why="commands of a cluster file are written for it",
        fix="take an image with bash",
        node=case.node,
        output=said,
    )


def _bad_options(case: Case, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"{case.engine} does not understand docker.run_options",
        why=said[0],
        fix=f"correct them; {case.engine} run --help lists what there is",
        node=case.node,
        output=said,
    )


_Table = tuple[tuple[tuple[str, ...], _Maker], ...]

_ENGINE: _Table = (
    (("permission denied",), _not_in_the_group),
    (("cannot connect to the docker daemon", "docker daemon running"), _not_running),
)

_PULL: _Table = (
    (("invalid reference format", "must be lowercase"), _not_an_image_name),
    (("no space left",), _disk_full),
    (
        ("pull access denied", "manifest unknown", "name unknown", "not found", "did not resolve"),
        _no_such_image,
    ),
    (
        ("unauthorized", "authentication required", "no basic auth", "denied", "forbidden"),
        _login_refused,
    ),
    (
        ("no such host", "connection refused", "timeout", "dial tcp", "unreachable", "pinging"),
        _registry_silent,
    ),
)

_RUN: _Table = (
    (("no space left",), _disk_full),
    (('"bash": executable file not found', "`bash` not found"), _no_bash),
    (("unknown flag", "unknown shorthand", "invalid argument", "flag needs"), _bad_options),
)


def _match(table: _Table, case: Case, said: Sequence[str]) -> ShoalError | None:
    """The first row with a phrase that was printed."""
    return next((make(case, said) for phrases, make in table if _has(said, *phrases)), None)


def _has(said: Sequence[str], *phrases: str) -> bool:
    text = "\n".join(said).lower()
    return any(phrase in text for phrase in phrases)


def _last(said: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(said) if line.strip()), "it gave no reason")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
