"""Installs Shoal on the head, with what the controller needs there."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Sequence
from typing import Any

from shoal.bootstrap.package_upload import upload_package
from shoal.cluster.handle import ClusterHandle
from shoal.core.concurrency import run_all
from shoal.core.errors import SetupError
from shoal.providers import code_for_head
from shoal.providers.model import Instance
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Runner, quote
from shoal.remote.scripts import script_command

_SCRIPTS = "shoal.controller.scripts"
_COPY_SECONDS = 60.0
_INSTALL_SECONDS = 300.0
# Python packages for the controller, where the head has none of its own.
_PACKAGES_DIRECTORY = ".shoal/packages"
# The key with which the head logs in to nodes that cannot be given the cluster's own.
_PROVIDER_KEY = ".shoal/provider_key"


async def install_on_head(
    cluster: ClusterHandle, head: Instance, start: RayStart, bootstrapping: Collection[str] = ()
) -> None:
    """Upload Shoal to the head, and give the head the cluster key, with which its controller
    reaches every node, itself included. Bootstrap gives it access to those with these ids."""
    machine, inside = cluster.runner(head), cluster.node_runner(head)
    code = code_for_head(cluster.spec)
    secrets = await cluster_secrets.create_credentials(machine, cluster.spec.cluster_name, head.id)
    steps: list[Coroutine[Any, Any, object]] = [
        cluster_secrets.trust_head(machine, secrets),
        upload_package(inside, start, code),
    ]
    if cluster.existing_hosts is not None:
        steps.append(cluster.existing_hosts.authorize_key(secrets, bootstrapping))
    if cluster.capabilities.head_packages:
        packages = cluster.capabilities.head_packages
        why = "the controller needs it to launch instances"
        steps.append(_install(inside, start, "install_packages.sh", packages, why))
    if cluster.capabilities.head_key is not None and (key := cluster.capabilities.head_key()):
        steps.append(_copy_key(inside, key))
    if code.requirements:
        # With what it needs besides what the head has: the head's Ray stays as it is.
        why = "the cluster's provider is in it"
        steps.append(_install(inside, start, "install_requirements.sh", code.requirements, why))
    await run_all(steps)


async def _copy_key(runner: Runner, key: bytes) -> None:
    """Copy a private key to the head, readable by its user only."""
    command = f"umask 077 && mkdir -p .shoal && cat > {_PROVIDER_KEY}"
    done = await runner.run(command, stdin=key, timeout=_COPY_SECONDS, skip_profile=True)
    if not done.ok:
        raise SetupError("could not copy the SSH key to the head", output=done.tail)


async def _install(
    runner: Runner, start: RayStart, script: str, packages: Sequence[str], why: str
) -> None:
    """Install Python packages on the head with one of our scripts."""
    arguments = quote([_PACKAGES_DIRECTORY, *packages])
    command = f"{script_command(_SCRIPTS, script)} {start.python} {arguments}"
    done = await runner.run(
        start.with_environment(command), timeout=_INSTALL_SECONDS, skip_profile=True
    )
    if not done.ok:
        names = " ".join(packages)
        raise SetupError(
            f"could not install {names} on the head",
            why=why,
            fix=f"add it to the file: head_setup_commands: [pip install {names}]",
            output=done.tail,
        )
