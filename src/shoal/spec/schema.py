"""The schema of a cluster file: every key that `ray up` reads, or once read, and its type.

Checks each value on its own; `validation` checks values against each other. A new setting under
`shoal:` is one field in `ShoalYaml` and one in `cluster_spec.ShoalSettings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from shoal.spec import durations
from shoal.spec.problems import KeyPath, Problem, closest, did_you_mean, shown
from shoal.spec.yaml_document import Document


def _invalid(message: str) -> PydanticCustomError:
    # The message is a value, not the template: it may quote braces from the file.
    return PydanticCustomError("shape", "{message}", {"message": message})


def _integer(value: Any) -> int:
    is_integer = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_integer:
        raise _invalid(f"must be an integer, not {shown(value)}")
    return int(value)


def _count(value: Any) -> int:
    number = _integer(value)
    if number < 0:
        raise _invalid(f"must be 0 or more, not {shown(value)}")
    return number


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid(f"must be a number, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _invalid(f"must be a finite number, not {shown(value)}")
    if number < 0:
        raise _invalid(f"must be 0 or more, not {shown(value)}")
    return number


def _positive(value: Any) -> float:
    number = _amount(value)
    if number == 0:
        raise _invalid("must be more than 0")
    return number


def _fraction(value: Any) -> float:
    number = _amount(value)
    if not 0 < number <= 1:
        raise _invalid(f"must be more than 0 and at most 1, not {shown(value)}")
    return number


def _duration(value: Any) -> float:
    """Seconds, from a number, from text like 90s, 15m or 2h, or from false (0)."""
    if value is False:
        return 0.0
    if not isinstance(value, str):
        return _amount(value)
    try:
        return durations.seconds(value)
    except ValueError as error:
        raise _invalid(f"{error}, not {shown(value)}") from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _invalid(f"must be true or false, not {shown(value)}")
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    hint = "" if isinstance(value, (dict, list)) else "; put it in quotes"
    raise _invalid(f"must be a string, not {shown(value)}{hint}")


def _command(value: Any) -> str:
    if isinstance(value, dict):
        raise _invalid("must be a string, not a mapping; a command that contains ': ' needs quotes")
    return _text(value)


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise _invalid(f"must be {' or '.join(choices)}, not {shown(value)}")
        return str(value)

    return check


Integer = Annotated[int, BeforeValidator(_integer)]
Count = Annotated[int, BeforeValidator(_count)]
Amount = Annotated[float, BeforeValidator(_amount)]
Positive = Annotated[float, BeforeValidator(_positive)]
Duration = Annotated[float, BeforeValidator(_duration)]
Fraction = Annotated[float, BeforeValidator(_fraction)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
Texts = list[Text]
Commands = list[Annotated[str, BeforeValidator(_command)]]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AuthYaml(_Section):
    """`auth`"""

    ssh_user: Text = ""
    ssh_private_key: Text = ""
    ssh_public_key: Text = ""
    ssh_proxy_command: Text = ""
    ssh_proxy_use_node_id: Flag = False


class DockerYaml(_Section):
    """`docker`"""

    image: Text = ""
    head_image: Text = ""
    worker_image: Text = ""
    container_name: Text = ""
    pull_before_run: Flag = True
    run_options: Texts = []
    head_run_options: Texts = []
    worker_run_options: Texts = []
    disable_automatic_runtime_detection: Flag = False
    disable_shm_size_detection: Flag = False
    use_podman: Flag = False


class TypeDockerYaml(_Section):
    """`available_node_types.<name>.docker`"""

    worker_image: Text = ""
    worker_run_options: Texts = []
    pull_before_run: Flag = True


class NodeTypeYaml(_Section):
    """`available_node_types.<name>`"""

    node_config: dict[str, Any] = {}
    resources: dict[str, Amount] = {}
    labels: dict[str, Text] = {}
    min_workers: Count = 0
    max_workers: Count = 0
    idle_timeout_s: Amount = 0
    priority: Integer = 0
    initialization_commands: Commands = []
    worker_setup_commands: Commands = []
    docker: TypeDockerYaml = TypeDockerYaml()


class LegacyNodeYaml(BaseModel):
    """`head_node`, `worker_nodes`: accepts any key: the provider reads all but `resources`."""

    model_config = ConfigDict(extra="allow", strict=True)

    resources: dict[str, Amount] = {}
    Resources: dict[str, Amount] = {}


class ProviderYaml(BaseModel):
    """`provider`: accepts any key, since a provider may read it; only keys with a known meaning are
    checked."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Text = ""
    module: Text = ""
    region: Text = ""
    head_role: Text = ""
    permissions_boundary: Text = ""
    use_internal_ips: Flag = False
    cache_stopped_nodes: Flag = True
    disable_node_updaters: Flag = False
    head_ip: Text = ""
    external_head_ip: Text = ""
    worker_ips: Texts = []
    coordinator_address: Text = ""


class HostYaml(_Section):
    """`shoal.hosts.<address>`: settings of a single host."""

    user: Text = ""
    port: Count = 0
    resources: dict[str, Amount] = {}
    labels: dict[str, Text] = {}


class RegistryYaml(_Section):
    """`shoal.registry`"""

    server: Text = "docker.io"
    username: Text = ""
    password_env: Text = ""
    password_command: Text = ""


class VolumeYaml(_Section):
    """`shoal.volumes.<mount point>`"""

    device: Text = ""
    size: Count = 0
    type: Text = ""
    iops: Count = 0
    throughput: Count = 0
    keep: Flag = False
    filesystem: Annotated[str, BeforeValidator(_one_of("ext4", "xfs"))] = "ext4"
    docker_data_root: Flag = False
    node_types: Texts = []


class MountYaml(_Section):
    """`shoal.mounts.<mount point>`"""

    efs: Text = ""
    s3: Text = ""
    read_only: Flag = False
    tls: Flag = False
    node_types: Texts = []


class ShoalYaml(_Section):
    """`shoal`: settings that Ray does not have."""

    auth: Annotated[str, BeforeValidator(_one_of("token", "none"))] = "token"
    hosts: dict[str, HostYaml] = {}
    via_head: Flag = False
    command_timeout_s: Positive = 0
    reach_timeout_s: Positive = 0
    requirements: Text = ""
    consolidate: Flag = False
    max_concurrent_launches: Count = 0
    autostop: Duration = 0
    code: Text = ""
    provider_path: Text = ""
    controller: Flag = True
    environment: Text = ""
    lease: Duration = 0
    registry: RegistryYaml = RegistryYaml()
    fallback: dict[str, Texts] = {}
    on_demand_fallback: Flag = False
    bake: Flag = False
    ssh_from: Texts = []
    tags: dict[str, Text] = {}
    down: Annotated[str, BeforeValidator(_one_of("terminate", "stop"))] = "terminate"
    volumes: dict[str, VolumeYaml] = {}
    mounts: dict[str, MountYaml] = {}


class ClusterYaml(_Section):
    """The whole file: current keys first, then legacy keys."""

    cluster_name: Text = ""
    provider: ProviderYaml = ProviderYaml()
    auth: AuthYaml = AuthYaml()
    docker: DockerYaml = DockerYaml()
    available_node_types: dict[str, NodeTypeYaml] = {}
    head_node_type: Text = ""
    max_workers: Count = 0
    upscaling_speed: Amount = 0
    idle_timeout_minutes: Amount = 0
    file_mounts: dict[str, Text] = {}
    cluster_synced_files: Texts = []
    file_mounts_sync_continuously: Flag = False
    rsync_exclude: Texts = []
    rsync_filter: Texts = []
    initialization_commands: Commands = []
    setup_commands: Commands = []
    head_setup_commands: Commands = []
    worker_setup_commands: Commands = []
    head_start_ray_commands: Commands = []
    worker_start_ray_commands: Commands = []
    no_restart: Flag = False
    metadata: dict[str, Any] = {}
    shoal: ShoalYaml = ShoalYaml()

    min_workers: Count = 0
    initial_workers: Count = 0
    max_worker_nodes: Count = 0
    autoscaling_mode: Annotated[
        str, BeforeValidator(_one_of("default", "aggressive", "conservative"))
    ] = "default"
    target_utilization_fraction: Fraction = 1
    worker_default_node_type: Text = ""
    head_node: LegacyNodeYaml = LegacyNodeYaml()
    worker_nodes: LegacyNodeYaml = LegacyNodeYaml()
    head_init_commands: Commands = []
    worker_init_commands: Commands = []


@dataclass(frozen=True)
class Shape:
    """The valid part of a file. Invalid values are dropped, so that later checks can still find
    problems in the rest; `dropped` has their paths."""

    data: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    dropped: set[KeyPath] = field(default_factory=set)


def check_shape(document: Document, data: dict[str, Any]) -> Shape:
    """Check every value against the schema. Each invalid one is a problem and is dropped."""
    try:
        return Shape(ClusterYaml.model_validate(data).model_dump(exclude_unset=True))
    except ValidationError as error:
        errors = [(tuple(item["loc"]), item) for item in error.errors()]
    problems = [_problem(document, path, item) for path, item in errors]
    invalid = {path for path, _ in errors}
    valid = ClusterYaml.model_validate(_without(data, invalid))
    intended = {_intended(path) for path, item in errors if item["type"] == "extra_forbidden"}
    return Shape(valid.model_dump(exclude_unset=True), problems, invalid | intended)


def _intended(path: KeyPath) -> KeyPath:
    """The path of the key that a misspelt key probably stands for."""
    return (*path[:-1], closest(str(path[-1]), known_keys(path[:-1])) or path[-1])


def _problem(document: Document, path: KeyPath, error: Any) -> Problem:
    error_type, value = error["type"], error["input"]
    if error_type == "extra_forbidden":
        message = "is not a known key" + did_you_mean(str(path[-1]), known_keys(path[:-1]))
    elif error_type in ("dict_type", "model_type", "model_attributes_type"):
        message = f"must be a mapping, not {shown(value)}"
    elif error_type == "list_type":
        message = f"must be a list, not {shown(value)}"
    else:
        message = str(error["msg"])
    return Problem(document.name, message, path, _line_of(document.lines, path))


def _line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """The line of the value at `path`, or of the nearest value that contains it."""
    while path not in lines:
        if not path:
            return None
        path = path[:-1]
    return lines[path]


def known_keys(path: KeyPath) -> list[str]:
    """The keys that the section at `path` may have."""
    section: Any = ClusterYaml
    for key in path:
        if get_origin(section) is dict:
            section = get_args(section)[1]
        else:
            section = section.model_fields[key].annotation
    return list(section.model_fields)


def _without(data: Any, invalid: set[KeyPath], path: KeyPath = ()) -> Any:
    """A copy without the invalid values. A node type that is invalid as a whole stays, empty, so
    that its name is still known."""
    if isinstance(data, dict):
        kept: dict[str, Any] = {}
        for key, value in data.items():
            inner_path = (*path, key)
            if inner_path not in invalid:
                kept[key] = _without(value, invalid, inner_path)
            elif path == ("available_node_types",):
                kept[key] = {}
        return kept
    if isinstance(data, list):
        return [
            _without(item, invalid, (*path, i))
            for i, item in enumerate(data)
            if (*path, i) not in invalid
        ]
    return data
