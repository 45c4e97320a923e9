"""The container of a node: creates, restarts and removes it, and copies the cluster's secrets in.

It is replaced when what it is created from changes, restarted when it has stopped, and left alone
otherwise.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.bootstrap import applied_state
from shoal.bootstrap.containers import container_errors
from shoal.bootstrap.containers.container_errors import ContainerContext
from shoal.bootstrap.containers.image_pull import pull, repository
from shoal.bootstrap.containers.registry_login import LoginSource
from shoal.bootstrap.steps import NodeReporter
from shoal.core.errors import SetupError
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote.container import (
    CLUSTER_LABEL,
    CONTAINER_HASH_LABEL,
    RUNTIME_FILE,
    Container,
    remove_containers,
)
from shoal.remote.runner import Runner, capture, quote
from shoal.remote.scripts import read_script, script_command
from shoal.spec.cluster_spec import ContainerSpec, FilesSpec

_SCRIPTS = "shoal.bootstrap.containers.scripts"
_SHORT_SECONDS = 60.0

# Ray keeps 30% of the free memory for objects, in /dev/shm; 10% more is for its bookkeeping.
_SHM_SHARE = 0.3 * 1.1
_SHM_LIMIT = 200 * 10**9


@dataclass(frozen=True)
class NodeContainer:
    """The container that a node's Ray runs in. `digest` covers everything that the container is
    created from; `login` logs in to the registry of its image."""

    spec: ContainerSpec
    instance: Instance
    login: LoginSource

    @property
    def runtime(self) -> str:
        return self.spec.runtime

    @property
    def container(self) -> Container:
        return Container(self.runtime, self.spec.name)

    @property
    def digest(self) -> str:
        settings = {k: v for k, v in asdict(self.spec).items() if k != "pull_before_run"}
        return applied_state.digest([self.instance.cluster, settings])

    @property
    def context(self) -> ContainerContext:
        return ContainerContext(self.instance.name, self.spec, self.instance.user)


async def create(
    runner: Runner, container: NodeContainer, reporter: NodeReporter, *, seconds: float
) -> None:
    """Create the container, in place of any other that the cluster has on the host."""
    reporter.phase(Phase.PREPARING, f"checking {container.runtime}")
    facts = await _probe_runtime(runner, container)
    cluster = container.instance.cluster
    owner = facts.get("container", f"of {cluster}").removeprefix("of").strip()
    if owner in ("", "<no value>"):
        raise container_errors.name_conflict_error(container.context)
    if not facts.get("image") or container.spec.pull_before_run:
        reporter.phase(Phase.PREPARING, f"pulling image {container.spec.image}")
        await pull(
            runner, container.context, facts, container.login, reporter.output, seconds=seconds
        )
    reporter.phase(Phase.PREPARING, "creating container")
    commands = [
        # A Ray outside the container, or in another one, would be in the way.
        stop_command(container.instance.id),
        remove_containers(cluster),
        _note_command(container.runtime),
    ]
    if owner != cluster:  # the host was taken from that cluster
        commands.append(quote([container.runtime, "rm", "-f", container.spec.name]))
    commands.append(_create_command(container, facts))
    for command in commands:
        await _run(runner, container, command)
    await _check_running(runner, container)


async def restart(runner: Runner, container: NodeContainer, reporter: NodeReporter) -> None:
    """Start the stopped container again, with everything that is in it."""
    reporter.phase(Phase.PREPARING, "restarting container")
    await _probe_runtime(runner, container)
    await _run(runner, container, quote([container.runtime, "start", container.spec.name]))
    await _check_running(runner, container)


async def remove(runner: Runner, instance: Instance) -> None:
    """Remove the cluster's containers from a host that no longer needs one."""
    done = await runner.run(remove_containers(instance.cluster), timeout=_SHORT_SECONDS)
    if not done.ok:
        raise SetupError(
            "could not remove the node's container",
            fix="check docker or podman on the host\nshoal up CLUSTER",
            node=instance.name,
            output=done.tail,
        )


async def copy_secrets(runner: Runner, container: NodeContainer) -> None:
    """Copy the cluster's token, and on the head its key, from the host into the container."""
    command = script_command(
        _SCRIPTS,
        "copy_secrets.sh",
        container.runtime,
        container.spec.name,
        container.instance.role,
        read_script(_SCRIPTS, "receive_secrets.sh"),
    )
    done = await runner.run(command, timeout=_SHORT_SECONDS)
    if not done.ok:
        # Without the output: it could hold the token.
        raise SetupError(
            "could not copy the cluster's token into the container",
            why="the home directory of its user is not writable",
            fix="use an image whose user has a home directory",
            node=container.instance.name,
        )


async def create_mount_dirs(runner: Runner, container: NodeContainer, files: FilesSpec) -> None:
    """Create directories inside the container for file mounts outside the home directory, owned by
    the container's user, who may not be allowed to create them."""
    directories = _mount_dirs(files)
    if not directories:
        return
    command = script_command(
        _SCRIPTS,
        "create_mount_dirs.sh",
        container.runtime,
        container.spec.name,
        read_script(_SCRIPTS, "create_owned_dirs.sh"),
        *sorted(directories),
    )
    done = await runner.run(command, timeout=_SHORT_SECONDS)
    if not done.ok:
        raise SetupError(
            "could not create directories for the file mounts in the container",
            why=" ".join(done.tail[-1:]),
            node=container.instance.name,
            output=done.tail,
        )


async def _probe_runtime(runner: Runner, container: NodeContainer) -> Mapping[str, str]:
    """The facts that `probe_runtime.sh` prints. A user who was just added to the group docker is a
    member only after a new login, so that is tried once."""
    spec = container.spec
    command = script_command(
        _SCRIPTS,
        "probe_runtime.sh",
        container.runtime,
        spec.image,
        repository(spec.image),
        spec.name,
        CLUSTER_LABEL,
    )
    done, output = await capture(runner, command, timeout=_SHORT_SECONDS)
    if container_errors.is_permission_denied(done.tail):
        await runner.relogin()
        done, output = await capture(runner, command, timeout=_SHORT_SECONDS)
    if not done.ok:
        raise container_errors.runtime_error(container.context, done.code, done.tail)
    pairs = [line.partition(" ") for line in output]
    return {key: value.strip() for key, _, value in pairs}


def _create_command(container: NodeContainer, facts: Mapping[str, str]) -> str:
    """The command that creates the container. The user's options are shell text, as they are for
    Ray: they may use variables of the host."""
    spec, cluster = container.spec, container.instance.cluster
    argv = [container.runtime, "run", "--detach", "-it", f"--name={spec.name}"]
    argv += [
        f"--label={CLUSTER_LABEL}={cluster}",
        f"--label={CONTAINER_HASH_LABEL}={container.digest}",
    ]
    argv += ["--env=LC_ALL=C.UTF-8", "--env=LANG=C.UTF-8"]
    argv.append("--stop-signal=SIGKILL")  # a shell ignores SIGTERM, and `stop` would wait
    memory = facts.get("memory_kib", "")
    sets_shm_size = any("--shm-size" in option for option in spec.run_options)
    if spec.detect_shm_size and not sets_shm_size and memory.isdigit():
        argv.append(f"--shm-size={min(int(int(memory) * 1024 * _SHM_SHARE), _SHM_LIMIT)}b")
    if spec.detect_gpu_runtime and facts.get("gpu") == "yes":
        argv.append("--runtime=nvidia")
    options = " ".join(spec.run_options)
    return f"{quote(argv)} {options} {quote(['--net=host', spec.image, 'bash'])}"


def _mount_dirs(files: FilesSpec) -> set[str]:
    return {
        remote_path if Path(local_path).is_dir() else posixpath.dirname(remote_path)
        for remote_path, local_path in files.mounts.items()
        if remote_path.startswith("/")
    }


def _note_command(runtime: str) -> str:
    return f'mkdir -p "$HOME/.shoal" && {quote(["printf", "%s", runtime])} > {RUNTIME_FILE}'


async def _check_running(runner: Runner, container: NodeContainer) -> None:
    command = script_command(_SCRIPTS, "check_running.sh", container.runtime, container.spec.name)
    done, (state, *output) = await capture(runner, f"{command} || echo", timeout=_SHORT_SECONDS)
    is_running, _, code = state.partition(" ")
    if is_running != "true":
        raise container_errors.exited_error(container.context, code or "?", output or done.tail)


async def _run(runner: Runner, container: NodeContainer, command: str) -> None:
    done = await runner.run(command, timeout=_SHORT_SECONDS)
    if not done.ok:
        raise container_errors.create_error(container.context, done.tail)
