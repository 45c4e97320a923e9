"""Maps the output of docker and podman to errors with what failed, why, and the fix. The texts of
both runtimes differ and change between versions, so a few phrases are matched."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.core.errors import ConfigError, SetupError, ShoalError
from shoal.spec.cluster_spec import ContainerSpec


@dataclass(frozen=True)
class ContainerContext:
    """What an error is about: the node, its container, and the user that runs the container
    runtime there."""

    node: str
    container: ContainerSpec
    user: str = ""

    @property
    def runtime(self) -> str:
        return self.container.runtime

    @property
    def image(self) -> str:
        return self.container.image


_MakeError = Callable[[ContainerContext, Sequence[str]], ShoalError]

_EXIT_NOT_INSTALLED = 127
_HELP_HINT = re.compile(r"Run '\w+ [\w ]*--help' for more information\.?")


def runtime_error(context: ContainerContext, code: int, output: Sequence[str]) -> ShoalError:
    """Why the container runtime cannot be used."""
    if code == _EXIT_NOT_INSTALLED:
        return _not_installed(context, output)
    return _match(_RUNTIME_ERRORS, context, output) or SetupError(
        f"{context.runtime} does not work on the host",
        why=_last_line(output),
        fix=f"run this on the host to see why: {context.runtime} info",
        node=context.node,
        output=output,
    )


def is_permission_denied(output: Sequence[str]) -> bool:
    """Whether the container runtime works, but not for this user."""
    return _contains(output, "permission denied")


def pull_error(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    """Why the image could not be pulled."""
    return _match(_PULL_ERRORS, context, output) or SetupError(
        f"could not pull image {context.image}",
        why=_last_line(output),
        node=context.node,
        output=output,
    )


def create_error(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    """Why the container could not be created."""
    return _match(_CREATE_ERRORS, context, output) or SetupError(
        f"could not create a container from {context.image}",
        why=_last_line(output),
        fix="check docker.run_options and the image",
        node=context.node,
        output=output,
    )


def exited_error(context: ContainerContext, code: str, output: Sequence[str]) -> ShoalError:
    """The container exited right after its start."""
    return SetupError(
        f"container {context.container.name} exited at once with code {code}",
        why=_last_line(output)
        if output
        else f"{context.image} runs its own entrypoint instead of the shell",
        fix="use an image without an ENTRYPOINT, or add to docker.run_options: --entrypoint=",
        node=context.node,
        output=output,
    )


def image_too_large_error(context: ContainerContext, needed: int, free: int) -> ShoalError:
    """The image does not fit on the host's disk."""
    return SetupError(
        f"image {context.image} does not fit on the host's disk",
        why=f"pulling it needs at least {_gib(needed)}, and {_gib(free)} are free where "
        f"{context.runtime} stores images",
        fix=f"free some space ({context.runtime} system prune), "
        "or use a larger disk or a smaller image",
        node=context.node,
    )


def name_conflict_error(context: ContainerContext) -> ShoalError:
    """A container that Shoal did not create has the name."""
    name = context.container.name
    return ConfigError(
        f"the host has a container {name} that Shoal did not create",
        why="docker.container_name is the same, and replacing it would destroy its content",
        fix=f"choose another name, or remove it on the host: {context.runtime} rm -f {name}",
        node=context.node,
    )


def _not_installed(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    install = "sudo apt-get update, sudo apt-get install -y podman"
    if context.runtime == "docker":
        install = "sudo apt-get update, sudo apt-get install -y docker.io, "
        install += "sudo usermod -aG docker $USER"
    return SetupError(
        f"{context.runtime} is not installed on the host",
        why="the cluster file has a docker section",
        fix=f"install it first: initialization_commands: [{install}]",
        node=context.node,
        output=output,
    )


def _not_in_docker_group(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return SetupError(
        f"{context.user or 'the user'} may not use docker on the host",
        why="only root and members of the group docker may",
        fix=f"initialization_commands: [sudo usermod -aG docker {context.user or '$USER'}]",
        node=context.node,
        output=output,
    )


def _not_running(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return SetupError(
        "docker is not running on the host",
        why="it is installed, but its daemon does not answer",
        fix="initialization_commands: [sudo systemctl start docker]",
        node=context.node,
        output=output,
    )


def _image_not_found(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"image not found: {context.image}",
        why="the registry has no such image, or requires a login to show it",
        fix="correct the name in the docker section, or set shoal.registry for a private registry",
        node=context.node,
        output=output,
    )


def _invalid_image_name(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"invalid image name: {context.image}",
        why=_last_line(output),
        fix="correct it in the docker section: [registry/]name[:tag]",
        node=context.node,
        output=output,
    )


def _login_refused(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"the registry of {context.image} denied access",
        why=_last_line(output),
        fix="check shoal.registry: server, username and password",
        node=context.node,
        output=output,
    )


def _registry_unreachable(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return SetupError(
        f"cannot reach the registry of {context.image} from the host",
        why=_last_line(output),
        fix="check the name and the host's internet access; with pull_before_run: false an image "
        "that is already on the host is used",
        node=context.node,
        output=output,
    )


def _disk_full(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return SetupError(
        f"no space left on the host's disk for {context.image}",
        why=_last_line(output),
        fix=f"free some space ({context.runtime} system prune), or use a larger disk",
        node=context.node,
        output=output,
    )


def _no_bash(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"image {context.image} has no bash",
        why="the commands of a cluster file run in bash",
        fix="use an image with bash",
        node=context.node,
        output=output,
    )


def _invalid_options(context: ContainerContext, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"{context.runtime} rejects docker.run_options",
        why=output[0],
        fix=f"correct them; `{context.runtime} run --help` lists the options",
        node=context.node,
        output=output,
    )


_ErrorTable = tuple[tuple[tuple[str, ...], _MakeError], ...]

_RUNTIME_ERRORS: _ErrorTable = (
    (("permission denied",), _not_in_docker_group),
    (("cannot connect to the docker daemon", "docker daemon running"), _not_running),
)

_PULL_ERRORS: _ErrorTable = (
    (("invalid reference format", "must be lowercase"), _invalid_image_name),
    (("no space left",), _disk_full),
    (
        ("pull access denied", "manifest unknown", "name unknown", "not found", "did not resolve"),
        _image_not_found,
    ),
    (
        ("unauthorized", "authentication required", "no basic auth", "denied", "forbidden"),
        _login_refused,
    ),
    (
        ("no such host", "connection refused", "timeout", "dial tcp", "unreachable", "pinging"),
        _registry_unreachable,
    ),
)

_CREATE_ERRORS: _ErrorTable = (
    (("no space left",), _disk_full),
    (('"bash": executable file not found', "`bash` not found"), _no_bash),
    (("unknown flag", "unknown shorthand", "invalid argument", "flag needs"), _invalid_options),
)


def _match(
    table: _ErrorTable, context: ContainerContext, output: Sequence[str]
) -> ShoalError | None:
    """The error of the first row with a phrase that is in the output."""
    return next(
        (make(context, output) for phrases, make in table if _contains(output, *phrases)), None
    )


def _contains(output: Sequence[str], *phrases: str) -> bool:
    text = "\n".join(output).lower()
    return any(phrase in text for phrase in phrases)


def _last_line(output: Sequence[str]) -> str:
    """The last line that says something: Docker's last one may only name its help."""
    lines = (line.strip() for line in reversed(output))
    reasons = (line for line in lines if line and not _HELP_HINT.fullmatch(line))
    return next(reasons, "it gave no reason")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
