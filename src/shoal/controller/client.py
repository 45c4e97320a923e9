"""The laptop's side of the controller: deploy, pause, resume and stop it.
Everything here is a command on the head."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

from shoal import spec as specs
from shoal.bootstrap import agents
from shoal.bootstrap.containers import registry_login
from shoal.bootstrap.package_upload import package_archive
from shoal.cluster.handle import ClusterHandle
from shoal.controller.config_changes import config_changes
from shoal.controller.controller_config import ControllerConfig
from shoal.controller.head_install import install_on_head
from shoal.controller.paths import (
    CONFIG,
    CONTROLLER_LOCK,
    DIRECTORY,
    SUPERVISOR_LOCK,
    UNLISTED,
)
from shoal.controller.status_reader import (
    LOG_LINES,
    READ_SECONDS,
    SCRIPTS,
    StatusReport,
    read_status,
)
from shoal.core.concurrency import run_all
from shoal.core.errors import IncompleteError, SetupError, ShoalError
from shoal.core.events import Emit, Warned
from shoal.core.logs import suppress_and_log
from shoal.providers import code_for_head
from shoal.providers.model import Instance, State
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Completed, Runner, capture, quote
from shoal.remote.scripts import script_command
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_COMMAND_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_TERMINATE_SECONDS = 900.0
# How often, twice a second, the locks of a controller without a config are polled.
_EXIT_POLLS = 40
# How long a controller may take until its first report.
_FIRST_REPORT_SECONDS = 30.0
# How long an interrupted command waits for the controller to be resumed.
_RESUME_SECONDS = 30.0
# Where providers keep local state on a head that is not this machine.
_HOME_ON_HEAD = "~/.shoal/home"


def has_controller(spec: ClusterSpec) -> bool:
    """Whether this cluster has a controller. Also one of fixed size has: it repairs nodes."""
    return spec.shoal.controller


async def prepare_controller(
    cluster: ClusterHandle, head: Instance, *, home: Path, bootstrapping: Collection[str]
) -> bool:
    """Install Shoal on the head, whose Ray runs, and start the controller, which then waits for
    `deploy_controller`. Returns whether Shoal is installed; a failure is left to
    `deploy_controller`, which repeats what is missing. `home` is Shoal's directory on this
    machine; `bootstrapping` are the ids of the instances on which bootstrap works meanwhile."""
    if not has_controller(cluster.spec):
        return False
    start = cluster.ray_start(head, head)
    try:
        if not cluster.capabilities.shares_this_machine:
            await install_on_head(cluster, head, start, bootstrapping)
        done = await _run_start_script("prepare_controller.sh", cluster, head, home)
    except (ShoalError, TimeoutError) as error:
        _log.info("could not prepare the controller: %s", error)
        return False
    if not done.ok:
        _log.info("could not prepare the controller: %s", "; ".join(done.tail))
    return True


async def deploy_controller(
    cluster: ClusterHandle, head: Instance, *, emit: Emit, home: Path, is_installed: bool = False
) -> StatusReport | None:
    """Deploy the cluster's current spec to the controller, start it if it does not run, and return
    its first report with the new spec; None if the cluster has no controller. A running one applies
    the spec without a restart. `home` is Shoal's directory on this machine; `is_installed` is what
    `prepare_controller` returned. Raises `IncompleteError` if the controller does not run."""
    if not has_controller(cluster.spec):
        try:
            await stop_controller(cluster, head, standby_seconds=math.inf)  # it may have had one
        except SetupError as error:
            emit(Warned(error.what, error.why, error.fix, head.name))
        await _disable_lease_wait(cluster)
        return None
    try:
        await _deploy(cluster, head, home, is_installed=is_installed)
        report = await read_status(cluster, head, wait_seconds=_FIRST_REPORT_SECONDS)
        if report is not None and report.alive and not report.restarts_too_often:
            return report
        problem = _not_running(cluster.spec, head, report)
    except IncompleteError as error:
        problem = error
    except (ShoalError, TimeoutError) as error:
        output = error.output if isinstance(error, ShoalError) else ()
        problem = _not_deployed(cluster.spec, str(error), head.name, output)
    _log.info("the controller does not run: %s", problem)
    if not cluster.spec.shoal.autostop:
        await _disable_lease_wait(cluster)
    raise problem


async def _deploy(
    cluster: ClusterHandle, head: Instance, home: Path, *, is_installed: bool
) -> None:
    """Deploy the controller. Raises `IncompleteError` if that fails."""
    if not cluster.capabilities.shares_this_machine and not is_installed:
        await install_on_head(cluster, head, cluster.ray_start(head, head))
    done = await _run_start_script("deploy_controller.sh", cluster, head, home)
    if not done.ok:
        why = done.tail[-1] if done.tail else "it could not be started"
        raise _not_deployed(cluster.spec, why, head.name, done.tail)


async def _run_start_script(
    name: str, cluster: ClusterHandle, head: Instance, home: Path
) -> Completed:
    """Run a script that gets the controller's config, and starts the controller."""
    spec, capabilities = cluster.spec, cluster.capabilities
    start = cluster.ray_start(head, head)
    is_this_machine = capabilities.shares_this_machine
    config = ControllerConfig(
        capabilities.head_spec(spec) if capabilities.head_spec else spec,
        cluster.planner.files_digest,
        str(home) if is_this_machine else _HOME_ON_HEAD,
        start.gcs_address,
        capabilities.host_keys.keys() if capabilities.host_keys else {},
    )
    package = (await asyncio.to_thread(package_archive, code_for_head(spec))).directory
    secrets = await registry_login.controller_env(spec.shoal.registry)
    options = [f"--secret={secret}" for secret in secrets]
    if not is_this_machine:  # what runs on this machine after a reboot is up to its user
        options.append("--at-boot")
    package_path = "" if is_this_machine else package
    return await _run_script(
        cluster.node_runner(head),
        start,
        _script(name, start, package, package_path, *options),
        stdin=json.dumps(config.to_json()).encode(),
        secrets=secrets,
    )


def _not_running(spec: ClusterSpec, head: Instance, report: StatusReport | None) -> IncompleteError:
    """The error of a controller that was started, and does not publish its status."""
    if report is None:
        why = "the controller has left nothing on the head"
    elif report.restarts:
        why = f"the controller has died {report.restarts} times since it was started"
    else:
        why = f"the controller has published nothing within {_FIRST_REPORT_SECONDS:.0f} s"
    return _not_deployed(spec, why, head.name, report.log if report else ())


def _not_deployed(
    spec: ClusterSpec, why: str, node: str, output: Sequence[str] = ()
) -> IncompleteError:
    """What it means that the controller is missing. A user who wants autostop must know that the
    cluster does not stop; and workers that had a controller wait for it after its standby ends."""
    settings, what = spec.shoal, "the cluster does not autoscale"
    if settings.autostop:
        hours = math.ceil((settings.max_maintenance_s + settings.lease) / 3600)
        ends = f"; its nodes shut down in about {hours} h" if settings.lease else ""
        what += f" and does not stop when it is idle{ends}"
    within = f"within {settings.max_maintenance_s / 3600:.0f} h"
    fix = f"{within}: shoal up CLUSTER\nor disable it in the file: shoal: {{controller: false}}"
    return IncompleteError(what, why=why, fix=fix, node=node, output=output[-LOG_LINES:])


async def _disable_lease_wait(cluster: ClusterHandle) -> None:
    """Have the nodes not wait for a controller, so that the head's GCS is enough to renew their
    leases. A node that cannot be reached shuts down when it has waited in vain."""

    async def disable(instance: Instance) -> None:
        action = f"disable the lease wait of {instance.name}"
        with suppress_and_log(_log, action, ShoalError, TimeoutError):
            runner = cluster.runner(instance)
            await runner.run(
                agents.no_controller_command(), timeout=READ_SECONDS, skip_profile=True
            )

    if not cluster.capabilities.has_leases:
        return
    with suppress_and_log(_log, "list the instances", ShoalError):
        instances = await cluster.instances()
        await run_all(disable(i) for i in instances if i.state is State.RUNNING)


async def terminate_workers(cluster: ClusterHandle, head: Instance) -> list[str]:
    """Stop the controller for good, and have the head terminate all workers: for providers whose
    state is on the head. Does nothing on a head that never had a controller. Returns the names of
    workers that the provider has forgotten. Raises `SetupError` if others may be left."""
    start = cluster.ray_start(head, head)
    command = _script("controller_command.sh", start, "terminate-workers")
    runner = cluster.node_runner(head)
    try:
        await runner.connect(timeout=_CONNECT_SECONDS)
        done = await _run_script(runner, start, command, timeout=_TERMINATE_SECONDS)
    except (ShoalError, TimeoutError) as error:
        done = Completed(1, (str(error),))
    if not done.ok:
        raise SetupError(
            "could not terminate the workers from the head",
            why="the provider of this cluster keeps its state there",
            fix="shoal down CLUSTER\nand check in the cloud's console that no worker is left",
            node=head.name,
            output=done.tail,
        )
    printed = (line.split(" ", 1) for line in done.tail if line.startswith(f"{UNLISTED} "))
    return [name for _, name in printed]


async def stop_controller(
    cluster: ClusterHandle, head: Instance, *, standby_seconds: float = 0.0
) -> bool:
    """Stop the controller; for `standby_seconds`, a standby renews the leases of the nodes in its
    place. Does nothing without a controller. Returns whether the head was reached. Raises
    `SetupError` for a controller that does not stop."""
    start = cluster.ray_start(head, head)
    runner = cluster.node_runner(head)
    stop = _script("controller_command.sh", start, "stop", f"--standby-seconds={standby_seconds}")
    fallback = script_command(SCRIPTS, "remove_config.sh", str(_EXIT_POLLS))
    try:
        await runner.connect(timeout=_CONNECT_SECONDS)
    except (ShoalError, TimeoutError) as error:
        _log.info("could not reach the head to stop its controller: %s", error)
        return False
    try:
        done = await _run_script(runner, start, f"{stop} || {fallback}")
    except ShoalError as error:  # also a container that does not run: then nor does a controller
        _log.info("could not run a command on the head: %s", error)
        return False
    except TimeoutError:
        done = Completed(1, (f"no reply within {_COMMAND_SECONDS:.0f} s",))
    if not done.ok:
        locks = f"{DIRECTORY}/{SUPERVISOR_LOCK} {DIRECTORY}/{CONTROLLER_LOCK}"
        raise SetupError(
            "the controller does not stop",
            why="the controller and this command must not modify the cluster at the same time",
            fix=f"shoal exec CLUSTER 'kill -9 $(cat {locks})'\nrun the same command again",
            node=head.name,
            output=done.tail,
        )
    return True


@contextlib.asynccontextmanager
async def controller_paused(
    cluster: ClusterHandle, heads: Sequence[Instance]
) -> AsyncIterator[None]:
    """Pause the controller, so that it does not modify the cluster at the same time as the caller,
    who deploys it at the end. On an error or interrupt it is resumed with the config it had, unless
    the head's Ray was stopped."""
    for head in heads:
        await stop_controller(cluster, head, standby_seconds=cluster.spec.shoal.max_maintenance_s)
    try:
        yield
    except BaseException:
        errors = (ShoalError, TimeoutError, asyncio.TimeoutError)
        with suppress_and_log(_log, "resume the controller", *errors):
            resumed = run_all(_resume(cluster, head) for head in heads)
            await asyncio.wait_for(resumed, _RESUME_SECONDS)
        raise


async def _resume(cluster: ClusterHandle, head: Instance) -> None:
    if (await cluster.probe(head)).ray_runs:
        start = cluster.ray_start(head, head)
        secrets = await registry_login.controller_env(cluster.spec.shoal.registry)
        script = _script("controller_command.sh", start, "resume")
        await _run_script(cluster.node_runner(head), start, script, secrets=secrets)


async def pending_changes(cluster: ClusterHandle, head: Instance) -> list[str]:
    """What `deploy_controller` would change on a head that is up: settings with their old and new
    values, and whether it would start the controller."""
    if not has_controller(cluster.spec):
        return []
    # The lock ends with its holder; a process id may be that of a zombie, or be reused.
    lock = f"{DIRECTORY}/{SUPERVISOR_LOCK}"
    by_lock = f"! flock --shared --nonblock {lock} true"
    by_pid = f"kill -0 $(cat {lock}) 2>/dev/null"
    is_held = f"if command -v flock > /dev/null; then {by_lock}; else {by_pid}; fi"
    script = f"cat {DIRECTORY}/{CONFIG} && echo && test -e {lock} && {{ {is_held}; }} && echo runs"
    runner, capabilities = cluster.node_runner(head), cluster.capabilities
    try:
        _, output_lines = await capture(runner, script, timeout=READ_SECONDS, skip_profile=True)
    except (ShoalError, TimeoutError) as error:
        _log.info("could not read the controller's config: %s", error)
        return []  # deploying it fails too, with a warning
    config = next((line for line in output_lines if line.startswith("{")), None)
    if config is None:
        return ["the controller starts"]
    new = capabilities.head_spec(cluster.spec) if capabilities.head_spec else cluster.spec
    try:
        changes = config_changes(specs.from_json(json.loads(config)["spec"]), new)
    except (ValueError, KeyError, TypeError) as error:
        _log.info("could not parse the controller's config: %s", error)
        changes = ["the controller's config"]
    is_running = output_lines[-1] == "runs"
    return changes if is_running else [*changes, "the controller starts again"]


def _script(name: str, start: RayStart, *args: str) -> str:
    """A command that runs one of our scripts, with the head's Python as its first argument. That is
    shell text, which the head's shell expands."""
    return f"{script_command(SCRIPTS, name)} {start.python} {quote(args)}"


async def _run_script(
    runner: Runner,
    start: RayStart,
    command: str,
    *,
    stdin: bytes | None = None,
    secrets: Mapping[str, str] | None = None,
    timeout: float = _COMMAND_SECONDS,
) -> Completed:
    env = {**start.driver_env(), **(secrets or {})}
    command = start.with_environment(command)
    return await runner.run(command, env=env, stdin=stdin, timeout=timeout, skip_profile=True)
