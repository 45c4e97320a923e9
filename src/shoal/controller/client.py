"""A cluster's controller, from outside: handing it the cluster, ending it, and reading what it
has to say. It runs on the head; everything here is one command there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.bootstrap import agents
from shoal.bootstrap.containers import registry_login
from shoal.bootstrap.package_upload import PackageArchive, package_archive, upload_package
from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_file
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.lifecycle import Node
from shoal.controller.paths import (
    CONTROLLER_LOCK,
    DIRECTORY,
    HANDOVER,
    JOURNAL,
    LAST_HANDOVER,
    PULSE,
    STATE,
    SUPERVISOR_LOCK,
)
from shoal.controller.state import NodeUpdated, from_line
from shoal.controller.status_file import State
from shoal.core.concurrency import run_all
from shoal.core.errors import SetupError, ShoalError, UnreachableError
from shoal.core.events import Warned
from shoal.ops.context import Context
from shoal.providers.model import Instance
from shoal.providers.model import State as MachineState
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Completed, Runner, capture, quote
from shoal.spec.cluster_spec import ClusterSpec

_SECONDS = 60.0
_READ_SECONDS = 20.0
_CONNECT_SECONDS = 10.0
# How often it is looked, two times a second, whether a controller that lost its handover has ended.
_LOOKS = 40
# How long someone who interrupts us waits for the controller to be back.
_RESUME_SECONDS = 30.0
_FILE = f"{DIRECTORY}/{HANDOVER}"
_VERSION = f"{DIRECTORY}/version"
_PACKAGES_THERE = ".shoal/packages"
# The newest parcel is as good as any to end a controller with, or to have it again.
_TELL = f"""
test -d {DIRECTORY} || exit 0
newest=$(ls -td "$PWD"/.shoal/lib/*/ 2>/dev/null | head -n 1)
[ -z "$newest" ] || export PYTHONPATH="$newest:$PWD/{_PACKAGES_THERE}"
{{module}} {{verb}}
"""
# Where no Python can end a controller, taking its handover away does: it ends by itself, and is
# waited for as long as it has its locks.
_TAKE_AWAY = f"""
cd {DIRECTORY} || exit
[ ! -e {HANDOVER} ] || mv {HANDOVER} {LAST_HANDOVER} || rm {HANDOVER} || exit
command -v flock > /dev/null || exit
looks=0
for lock in {SUPERVISOR_LOCK} {CONTROLLER_LOCK}; do
  while [ -e $lock ] && ! flock --nonblock $lock true; do
    looks=$((looks + 1))
    [ $looks -le {{looks}} ] || exit 1
    sleep 0.5
  done
done
"""
# Hands over what arrives on standard input. A controller of another Shoal does not know what
# this one writes, so it is replaced.
_HAND_OVER = f"""
mkdir -p {DIRECTORY} || exit
cat > {_FILE}.new || exit
[ ! -e {_VERSION} ] || [ "$(cat {_VERSION})" = {{version}} ] || {{module}} stop {DIRECTORY} || exit
echo {{version}} > {_VERSION}
mv {_FILE}.new {_FILE} && {{module}} start {DIRECTORY} {{when}} {{secrets}}
"""
# Has Python packages where only the controller looks; what the head has is used as it is.
_BRING_PACKAGES = """
for package in {packages}; do
  {python} -c "import $package" 2>/dev/null ||
  {python} -m pip install --quiet --target {directory} "$package" || exit
done
"""

# Where providers keep local state on a head that is not this machine.
_HOME_THERE = "~/.shoal/home"
_INSTALL_SECONDS = 300.0


def has_controller(spec: ClusterSpec) -> bool:
    """Whether a controller looks after this cluster. Also where there is nothing to size: it
    brings back what was lost."""
    return spec.shoal.controller


async def deploy_controller(ctx: Context, site: ClusterHandle, head: Instance) -> None:
    """Give the cluster, as its spec is now, to the controller, which is started if it does not
    run. One that runs takes it over without being restarted. A cluster without a controller is
    still a cluster: what stands in the way is a warning."""
    if not has_controller(site.spec):
        try:
            await stop_controller(site, head, deputy_seconds=math.inf)  # it may have had one
        except SetupError as error:
            ctx.emit(Warned(error.what, error.why, error.fix, head.name))
        await _leave_unattended(site)
        return
    start = site.ray_start(head, head)
    runner = site.node_runner(head)
    capabilities = site.capabilities
    here = capabilities.shares_this_machine
    told = capabilities.head_spec(site.spec) if capabilities.head_spec else site.spec
    handover = ControllerConfig(
        told,
        site.planner.files_digest,
        str(ctx.home) if here else _HOME_THERE,
        start.gcs_address,
        capabilities.host_keys.keys() if capabilities.host_keys else {},
    )
    try:
        prelude = ""
        if not here:
            sent = await _move_in(site, head, start)
            prelude = f'{sent.python_path}:"$PWD/{_PACKAGES_THERE}"'
        version = quote([package_archive().directory])
        # The machine that this program runs on is the user's own to start things on.
        when = "now" if here else "at-boot-too"
        secrets = await registry_login.controller_env(site.spec.shoal.registry)
        script = _HAND_OVER.format(
            version=version, module=_module(start), when=when, secrets=quote(list(secrets))
        )
        command = f"{prelude}\n{script}"
        told_as = json.dumps(handover.to_json()).encode()
        done = await _run(runner, start, command, told_as, secrets)
        output = done.tail if not done.ok else None
    except (ShoalError, TimeoutError) as error:
        output = (str(error),)
    if output is not None:
        ctx.emit(_not_handed_over(site.spec, " ".join(output[-1:]), head.name))
        if not site.spec.shoal.autostop:
            await _leave_unattended(site)


def _not_handed_over(spec: ClusterSpec, why: str, node: str) -> Warned:
    """What it means that there is no controller, for one who wanted one. Who wants a cluster to go
    when nobody uses it must not find it there for ever; and workers that had a controller before
    are held to it once its deputy has left."""
    settings, what = spec.shoal, "the cluster does not size itself"
    if settings.autostop:
        hours = math.ceil((settings.max_maintenance_s + settings.lease) / 3600)
        ends = f"; its machines end themselves in about {hours} h" if settings.lease else ""
        what += f", and does not stop when it is idle{ends}"
    within = f"within {settings.max_maintenance_s / 3600:.0f} h"
    fix = f"shoal up again {within}, or do without: shoal: {{controller: false}}"
    return Warned(what, why, fix, node)


async def _leave_unattended(site: ClusterHandle) -> None:
    """Tell the cluster's machines not to wait for a controller, so that the head's Ray is enough
    for them. One that cannot be told ends itself when it has waited in vain."""

    async def tell(instance: Instance) -> None:
        with contextlib.suppress(ShoalError, TimeoutError):
            runner = site.runner(instance)
            await runner.run(
                agents.no_controller_command(), timeout=_READ_SECONDS, skip_profile=True
            )

    if not site.capabilities.has_leases:
        return
    with contextlib.suppress(ShoalError):
        found = await site.instances()
        await run_all(tell(i) for i in found if i.state is MachineState.RUNNING)


async def _move_in(site: ClusterHandle, head: Instance, start: RayStart) -> PackageArchive:
    """Bring Shoal to the head, and let the head into itself and into its future workers: its
    controller reaches every machine of the cluster in the same way."""
    machine, inside = site.runner(head), site.node_runner(head)
    made = await cluster_secrets.create_credentials(machine, site.spec.cluster_name, head.id)
    errands: list[Coroutine[Any, Any, object]] = [
        cluster_secrets.trust_head(machine, made),
        upload_package(inside, start.python),
    ]
    if site.existing_hosts is not None:
        errands.append(site.existing_hosts.authorize_key(made))
    if site.capabilities.head_packages:
        errands.append(_bring_packages(inside, start, site.capabilities.head_packages))
    await run_all(errands)
    return package_archive()


async def _bring_packages(runner: Runner, start: RayStart, packages: Sequence[str]) -> None:
    script = _BRING_PACKAGES.format(
        packages=quote(packages), python=start.python, directory=_PACKAGES_THERE
    )
    done = await runner.run(start.with_prelude(script), timeout=_INSTALL_SECONDS)
    if not done.ok:
        names = " ".join(packages)
        raise SetupError(
            f"the head has no {names}, and cannot install it",
            why="the controller needs it to launch machines",
            fix=f"add it to the file: head_setup_commands: [pip install {names}]",
            output=done.tail,
        )


async def stop_controller(
    site: ClusterHandle, head: Instance, *, deputy_seconds: float = 0.0
) -> bool:
    """End the controller, so that nobody else changes the cluster; for so long, a deputy promises
    the cluster's machines in its place that they are not lost. Without a controller, nothing is
    done; a head that cannot be reached has nobody to dismiss. Returns whether it was reached.
    Raises `SetupError` for a controller that does not end."""
    start = site.ray_start(head, head)
    runner = site.node_runner(head)
    stop = _TELL.format(module=_module(start), verb=f"stop {DIRECTORY} {deputy_seconds} && exit")
    script = stop + _TAKE_AWAY.format(looks=_LOOKS)
    try:
        await runner.connect(timeout=_CONNECT_SECONDS)
    except (ShoalError, TimeoutError):
        return False
    try:
        done = await _run(runner, start, script)
    except ShoalError:  # also a container that is not running: nor is what was in it
        return False
    except TimeoutError:
        done = Completed(1, (f"no reply within {_SECONDS:.0f} s",))
    if not done.ok:
        locks = f"{DIRECTORY}/{SUPERVISOR_LOCK} {DIRECTORY}/{CONTROLLER_LOCK}"
        raise SetupError(
            "the cluster's controller does not end",
            why="two hands must not change one cluster",
            fix=f"shoal exec {site.spec.cluster_name} 'kill -9 $(cat {locks})', and again",
            node=head.name,
            output=done.tail,
        )
    return True


@contextlib.asynccontextmanager
async def controller_paused(site: ClusterHandle, heads: Sequence[Instance]) -> AsyncIterator[None]:
    """Nobody else changes the cluster meanwhile: its controller is dismissed. Whoever does not get
    as far as handing the cluster over, because of an error or an interrupt, gives it back as it
    was where its Ray still runs: nobody would look after it."""
    for head in heads:
        await stop_controller(site, head, deputy_seconds=site.spec.shoal.max_maintenance_s)
    try:
        yield
    except BaseException:
        with contextlib.suppress(ShoalError, TimeoutError, asyncio.TimeoutError):
            resumed = run_all(_resume(site, head) for head in heads)
            await asyncio.wait_for(resumed, _RESUME_SECONDS)
        raise


async def _resume(site: ClusterHandle, head: Instance) -> None:
    if (await site.probe(head)).ray_runs:
        start = site.ray_start(head, head)
        script = _TELL.format(module=_module(start), verb=f"resume {DIRECTORY}")
        secrets = await registry_login.controller_env(site.spec.shoal.registry)
        await _run(site.node_runner(head), start, script, secrets=secrets)


@dataclass(frozen=True)
class Report:
    """What the controller said last. `age_s` is how long ago."""

    state: State
    age_s: float

    @property
    def alive(self) -> bool:
        return self.age_s < status_file.STALE_SECONDS


async def read_report(site: ClusterHandle, head: Instance) -> Report | None:
    """The controller's own account; None when there is none. Raises `UnreachableError` when there
    is no way to the head."""
    runner = site.node_runner(head)
    # The time is the head's, too: the clock here may be a different one. One whose disk is full
    # lives, and shows it by its pulse only, if it had room for that at least.
    pulse = f"date -r {DIRECTORY}/{PULSE} +%s 2>/dev/null || echo 0"
    script = f"cat {DIRECTORY}/{STATE} && echo && date +%s && {{ {pulse}; }}"
    try:
        done, printed = await capture(runner, script, timeout=_READ_SECONDS)
    except TimeoutError:
        why = f"no reply within {_READ_SECONDS:.0f} s"
        raise UnreachableError("the head does not answer", why=why, node=head.name) from None
    with contextlib.suppress(ValueError):
        if done.ok:
            *_, text, now, turned_at = printed
            return _report(status_file.parse(text), float(now), float(turned_at))
    return None


def _report(state: State, now: float, turned_at: float) -> Report:
    said, lives = Report(state, max(0.0, now - state.at)), Report(state, max(0.0, now - turned_at))
    if said.alive or not lives.alive:
        return said
    old = f"it cannot write down how things are, for {said.age_s:.0f} s: is the head's disk full?"
    return replace(lives, state=replace(state, trouble=old))


async def read_nodes(site: ClusterHandle, head: Instance, name: str) -> list[Node]:
    """The nodes of a name or id that the controller's journal still knows, as it last wrote of
    them, the oldest first."""
    journal = f"{DIRECTORY}/{JOURNAL}"
    kind = f'"kind": "{NodeUpdated.kind}"'
    script = f"{quote(['grep', '-F', '--', name, journal])} | {quote(['grep', '-F', kind])}"
    _, printed = await capture(site.node_runner(head), script, timeout=_READ_SECONDS)
    found: dict[str, Node] = {}
    for line in printed:
        with contextlib.suppress(ValueError):
            entry = from_line(line)
            if isinstance(entry, NodeUpdated) and name in (entry.node.name, entry.node.id):
                found[entry.node.id] = entry.node
    return list(found.values())


def _module(start: RayStart) -> str:
    return f"{start.python} {quote(['-m', 'shoal.controller'])}"


async def _run(
    runner: Runner,
    start: RayStart,
    command: str,
    stdin: bytes | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Completed:
    env = {**start.driver_env(), **(secrets or {})}
    return await runner.run(start.with_prelude(command), env=env, stdin=stdin, timeout=_SECONDS)
