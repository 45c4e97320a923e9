"""Starts a job on the Ray cluster that this process is connected to, and follows it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.core.errors import ConfigError, NotFoundError, ShoalError
from shoal.train.job.controller import Controller
from shoal.train.job.job_spec import NAMESPACE, STATUS_FILE, JobSpec
from shoal.train.job.journal import Entry

_log = logging.getLogger(__name__)

_POLL_S = 2.0
# A controller that does not answer is being restarted by Ray.
_RESTART_S = 60.0
_LINGER_S = 15.0
_BEGIN_S = 120.0
_CONNECT_S = 120.0
_HEAD = "node:__internal_head__"


@contextlib.contextmanager
def connected(address: str = "", *, ships_package: bool = False) -> Iterator[None]:
    """A connection to Ray, by default to the cluster that RAY_ADDRESS names. `ships_package` if
    the nodes have no Shoal of this version."""
    options: dict[str, Any] = {}
    if ships_package:
        options["runtime_env"] = {"py_modules": [str(Path(__file__).parents[2])]}
    target = address or os.environ.get("RAY_ADDRESS") or "auto"
    # Ray's client can wait without end, in code that no exception interrupts.
    watchdog = threading.Timer(_CONNECT_S, _give_up, [target])
    watchdog.daemon = True
    watchdog.start()
    ray.init(
        target,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level=logging.ERROR,
        **options,
    )
    watchdog.cancel()
    try:
        yield
    finally:
        ray.shutdown()


def _give_up(address: str) -> None:
    what = f"Ray at {address} does not answer"
    error = {"kind": "error", "what": what, "fix": "shoal status CLUSTER", "exit_code": 1}
    error["why"] = f"no connection within {_CONNECT_S:g} s"
    print(json.dumps(error), flush=True)
    os._exit(1)


def start(spec: JobSpec, code: bytes) -> Any:
    """Create the job's controller, on the head. It runs on when this process ends."""
    check_resources(spec)
    _await_end_of_earlier_run(spec)
    controller = (
        ray.remote(Controller)
        .options(
            num_cpus=0, name=spec.actor_name, namespace=NAMESPACE, lifetime="detached",
            max_restarts=-1, scheduling_strategy=_on_head(),
        )
        .remote(spec.to_json())
    )  # fmt: skip
    # It has the code, and runs on its own from here on.
    ray.get(controller.begin.remote(code), timeout=_BEGIN_S)
    return controller


def _await_end_of_earlier_run(spec: JobSpec) -> None:
    """The controller of a job that has ended stays for some seconds, for those who follow it."""
    deadline = time.monotonic() + _LINGER_S
    with contextlib.suppress(NotFoundError, ray.exceptions.RayError):
        while True:
            find(spec.id).acknowledge.remote()
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"job {spec.id} is running", fix=f"stop it first: shoal train stop {spec.id}"
                )
            time.sleep(0.2)


def check_resources(spec: JobSpec) -> None:
    """Raise `ConfigError` if GPUs were requested of a cluster that has none."""
    if not spec.gpus:
        return
    most = max((n["Resources"].get("GPU", 0) for n in ray.nodes() if n["Alive"]), default=0)
    if most < spec.gpus:
        has = f"the largest node has {most:g}" if most else "no node has a GPU"
        raise ConfigError(
            f"no node has {spec.gpus:g} GPUs for a worker",
            why=has,
            fix="start a node with GPUs first\nor train without: --gpus 0",
        )


def has_gpus() -> bool:
    return any(n["Resources"].get("GPU", 0) for n in ray.nodes() if n["Alive"])


def find(job: str) -> Any:
    """The controller of a running job."""
    try:
        return ray.get_actor(f"controller-{job}", NAMESPACE)
    except ValueError:
        raise NotFoundError(
            f"job {job} does not run", fix="list the jobs: shoal train list"
        ) from None


def follow(spec: JobSpec, emit: Callable[[Entry], None], after: int = 0) -> int:
    """Emit what the job reports until it ends, and return its status."""
    answered = time.monotonic()
    controller: Any = None
    while True:
        try:
            controller = controller or find(spec.id)
            after, entries = ray.get(controller.follow.remote(after, _POLL_S), timeout=_RESTART_S)
            answered = time.monotonic()
        except (ray.exceptions.RayError, ShoalError) as error:
            _log.info("the controller does not answer: %s", error)
            controller = None
            if (status := read_status(spec.path)) is not None:
                emit({"kind": "end", **status})
                return int(status["status"])
            if time.monotonic() - answered > _RESTART_S:
                raise ShoalError(
                    f"the controller of job {spec.id} does not answer", why=str(error)
                ) from None
            time.sleep(0.5)
            continue
        for number, entry in enumerate(entries, after - len(entries)):
            emit({**entry, "number": number})
            if entry["kind"] == "end":
                controller.acknowledge.remote()
                return int(entry["status"])


def on_head(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on the head, where the files of jobs are."""
    task = ray.remote(function).options(num_cpus=0, scheduling_strategy=_on_head())
    try:
        return ray.get(task.remote(*arguments), timeout=_RESTART_S)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, ShoalError) else ShoalError(str(cause)) from None


def read_status(directory: Path) -> Entry | None:
    """How a job ended; None while it runs."""
    try:
        status: Entry = json.loads((directory / STATUS_FILE).read_text())
        return status
    except (OSError, ValueError):
        return None


def _on_head() -> Any:
    for node in ray.nodes():
        if node["Alive"] and _HEAD in node["Resources"]:
            return NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return "DEFAULT"
