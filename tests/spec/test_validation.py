"""Problems of invalid files: all are reported at once, with line, path and fix."""

from __future__ import annotations

import pytest

from shoal.core.errors import ConfigError
from shoal.spec import SpecError

from .conftest import loaded, problems

AWS = "provider: {type: aws, region: us-west-2}\n"


def test_all_problems_are_reported_at_once() -> None:
    text = """\
        cluster_name: my cluster
        provider:
          type: awss
        available_node_types:
          gpu:
            min_workers: -1
            resources: {GPU: 0.5, CPU: true, X: .nan}
            max_workers: two
          spot:
            min_workers: 5
            max_workers: 2
            dokcer: {}
        head_node_type: gpux
        max_workers: 20
        auth: {ssh_proxy_use_node_id: true, ssh_usr: x}
        setup_commands:
          - echo a: b
        shoal: {aut: none}
        """
    assert problems(text) == [
        "cluster.yaml:1  cluster_name  must be up to 63 letters, digits, '-', '_' or '.', and "
        "start and end with a letter or digit; for example 'my-cluster'",
        "cluster.yaml:3  provider.type  'awss' is not a known provider; did you mean 'aws'?",
        "cluster.yaml:6  available_node_types.gpu.min_workers  must be 0 or more, not -1",
        "cluster.yaml:7  available_node_types.gpu.resources.CPU  must be a number, not true",
        "cluster.yaml:7  available_node_types.gpu.resources.X  must be a finite number",
        "cluster.yaml:8  available_node_types.gpu.max_workers  must be an integer, not 'two'",
        "cluster.yaml:10  available_node_types.spot.min_workers  must be at most max_workers, 2, "
        "not 5",
        "cluster.yaml:12  available_node_types.spot.dokcer  is not a known key; did you mean "
        "'docker'?",
        "cluster.yaml:13  head_node_type  'gpux' is not in available_node_types; did you mean "
        "'gpu'?",
        "cluster.yaml:15  auth.ssh_proxy_use_node_id  requires ssh_proxy_command",
        "cluster.yaml:15  auth.ssh_usr  is not a known key; did you mean 'ssh_user'?",
        "cluster.yaml:17  setup_commands[0]  must be a string, not a mapping; a command that "
        "contains ': ' needs quotes",
        "cluster.yaml:18  shoal.aut  is not a known key; did you mean 'auth'?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_workers: -1", "max_workers  must be 0 or more, not -1"),
        ("max_workers: true", "max_workers  must be an integer, not true"),
        ("max_workers: 1.5", "max_workers  must be an integer, not 1.5"),
        ("max_workers: [1]", "max_workers  must be an integer, not a list"),
        ("max_workers: '2'", "max_workers  must be an integer, not '2'"),
        ("idle_timeout_minutes: .inf", "idle_timeout_minutes  must be a finite number"),
        ("upscaling_speed: fast", "upscaling_speed  must be a number, not 'fast'"),
        ("no_restart: 'yes please'", "no_restart  must be true or false, not 'yes please'"),
        ("cluster_name: 12", "cluster_name  must be a string, not 12; put it in quotes"),
        ("docker: [a]", "docker  must be a mapping, not a list"),
        ("setup_commands: pip install x", "setup_commands  must be a list, not 'pip install x'"),
        ("setup_comands: []", "setup_comands  is not a known key; did you mean 'setup_commands'?"),
        ("file-mounts: {}", "file-mounts  is not a known key; did you mean 'file_mounts'?"),
        ("zebra: 1", "zebra  is not a known key"),
        ("autoscaling_mode: fast", "autoscaling_mode  must be default or aggressive or"),
        ("target_utilization_fraction: 0", "must be more than 0 and at most 1, not 0"),
        ("target_utilization_fraction: 1.2", "must be more than 0 and at most 1, not 1.2"),
        ("shoal: {auth: maybe}", "shoal.auth  must be token or none, not 'maybe'"),
        ("file_mounts: {/a: 3}", "file_mounts./a  must be a string, not 3"),
        ("docker: {container_name: c}", "docker.container_name  requires image"),
        ("docker: {head_image: i}", "docker  has an image for the head but not for all workers"),
        ("docker: {worker_image: i}", "docker  has an image for workers but none for the head"),
        ("head_node: {resources: {CPU: x}}", "head_node.resources.CPU  must be a number, not 'x'"),
        ("worker_default_node_type: w", "'w' is not in available_node_types"),
    ],
)
def test_a_problem_is_reported_with_its_line(text: str, expected: str) -> None:
    (line,) = problems(AWS + text)
    assert line.startswith("cluster.yaml:2  ")
    assert expected in line


def test_min_workers_must_not_exceed_max_workers() -> None:
    types = "available_node_types: {ray.head.default: {}, a: {min_workers: 2}, b: {min_workers: 2}}"
    (line,) = problems(f"{AWS}max_workers: 3\n{types}")
    assert line == (
        "cluster.yaml:2  max_workers  is 3, but min_workers of all node types add up to 4"
    )
    (line,) = problems(AWS + types)
    assert line == (
        "cluster.yaml:2  max_workers  is 2 by default, but min_workers of all node types add up "
        "to 4"
    )


def test_node_types_without_a_head_node_type() -> None:
    (line,) = problems(AWS + "available_node_types: {big: {}, small: {}}")
    assert line == "cluster.yaml:2  head_node_type  is missing; it must be one of big, small"


def test_consequences_of_an_invalid_value_are_not_reported() -> None:
    types = "available_node_types: {ray.head.default: {}, a: {min_workers: 3}}\n"
    assert len(problems(AWS + types + "max_workers: many")) == 1
    assert len(problems(AWS + types + "max_workerz: 5")) == 1
    assert len(problems(AWS + "available_node_types: [a]\nhead_node_type: a")) == 1
    assert len(problems(AWS + "available_node_types: {a: 1, b: {}}\nhead_node_type: a")) == 1


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("{type: kuberay}", "kuberay is not supported; use the KubeRay operator"),
        ("{type: fake_multinode}", "use embedded"),
        ("{type: nonsense}", "it must be one of aws, gcp, local, external, embedded"),
        ("{region: x}", "provider.type  is missing"),
        ("aws", "provider  must be a mapping, not 'aws'"),
        ("{type: external}", "provider.module  is missing"),
        ("{type: external, module: plain}", "must be a class name like package.Class, not 'plain'"),
        ("{type: local, head_ip: a}", "provider.worker_ips  is missing"),
        ("{type: local, worker_ips: []}", "provider.head_ip  is missing"),
        ("{type: local, head_ip: a, worker_ips: [b, b]}", "worker_ips[1]  b is listed twice"),
        (
            "{type: local, head_ip: '2001:DB8::1', worker_ips: ['[2001:db8:0::1]']}",
            "worker_ips[0]  2001:db8::1 is also the head's address",
        ),
        (
            "{type: local, head_ip: 'fe80::1%eth0', worker_ips: []}",
            "head_ip  fe80::1%eth0 is a link-local address",
        ),
        ("{type: local, head_ip: a, worker_ips: [b, a]}", "a is also the head's address"),
        ("{type: local, head_ip: a, worker_ips: b}", "provider.worker_ips  must be a list"),
        ("{type: aws, cache_stopped_nodes: 1}", "must be true or false, not 1"),
    ],
)
def test_an_invalid_provider_section(provider: str, expected: str) -> None:
    (line,) = problems(f"provider: {provider}")
    assert line.startswith("cluster.yaml:1  ")
    assert expected in line


def test_local_clusters_have_no_other_node_types() -> None:
    (line,) = problems(
        "provider: {type: local, head_ip: a, worker_ips: []}\navailable_node_types: {gpu: {}}"
    )
    assert line.startswith("cluster.yaml:2  available_node_types.gpu  is not supported")


@pytest.mark.parametrize("name", ["", "-a", "a/b", "ä", "a" * 64, "a\n", "..", "a b"])
def test_a_cluster_name_must_fit_tags_paths_and_labels(name: str) -> None:
    with pytest.raises(SpecError, match="cluster_name  must be up to 63"):
        loaded(AWS, cluster_name=name)


def test_on_gcp_a_cluster_name_need_not_be_a_label() -> None:
    spec = loaded("cluster_name: My_Run.1\nprovider: {type: gcp}").launchable()
    assert spec.cluster_name == "My_Run.1"


def test_a_problem_of_an_override_names_the_command_line() -> None:
    assert problems(AWS, max_workers=-1)[0].startswith("command line  max_workers  must be 0")
    several = AWS + "available_node_types: {ray.head.default: {}, a: {}, b: {}}"
    (line,) = problems(several, min_workers=1)
    assert line == (
        "command line  min_workers  cannot be applied; set min_workers of one of a, b in the file "
        "instead"
    )


def test_a_spec_error_is_a_config_error_with_exit_code_2() -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("nonsense: 1")
    assert caught.value.exit_code == 2


def test_an_invalid_container_name_and_registry() -> None:
    text = AWS + "docker: {image: i, container_name: a b}\nshoal: {registry: {server: r}}\n"
    assert problems(text) == [
        "cluster.yaml:2  docker.container_name  may only contain letters, digits, '_', '.' and '-'",
        "cluster.yaml:3  shoal.registry  requires username",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("available_node_types: {head: {resources: {CPU: 1.0e+30}}}", "must be at most 9e+14"),
        ("available_node_types: {head: {}, '': {}}", "has a node type with an empty name"),
        ("available_node_types: {head: {resources: {' ': 1}}}", "has an empty name"),
        ("available_node_types: {head: {labels: {'': x}}}", "has an empty name"),
        ("shoal: {fallback: {wroker: [m5.large]}}", "'wroker' is not in available_node_types"),
        ("shoal: {command_timeout_s: 0}", "must be more than 0"),
        ("shoal: {reach_timeout_s: 0}", "must be more than 0"),
    ],
)
def test_values_that_cannot_work_are_problems(text: str, problem: str) -> None:
    head = "head_node_type: head\n" if "head" in text else ""
    (line,) = problems(f"provider: {{type: embedded}}\n{head}{text}\n")
    assert problem in line
