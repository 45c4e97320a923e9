"""Resolved settings: they mean what they mean in current Ray, and legacy keys what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.ray_runtime.ray_start import node_identity_env
from shoal.spec import Overrides, YamlText, default_embedded, load
from shoal.spec.cluster_spec import RegistrySpec

from .conftest import loaded

AWS = "provider: {type: aws, region: us-west-2}\n"
TYPES = """
available_node_types:
  ray.head.default: {node_config: {InstanceType: m5.large}}
  cpu: {node_config: {InstanceType: m5.xlarge}}
"""


class TestLegacyNodeTypes:
    """`head_node` and `worker_nodes`, from before `available_node_types`."""

    OLD = AWS + (
        "min_workers: 1\nmax_workers: 10\n"
        "head_node: {InstanceType: m4.large}\n"
        "worker_nodes:\n"
        "  InstanceType: p2.xlarge\n"
        "  InstanceMarketOptions: {MarketType: spot}\n"
        "  resources: {GPU: 1}\n"
    )

    def test_they_become_two_node_types(self) -> None:
        spec = loaded(self.OLD).spec
        worker = spec.node_types["ray-legacy-worker-node-type"]
        assert spec.head.name == "ray-legacy-head-node-type"
        assert spec.head.node_config == {"InstanceType": "m4.large"}
        assert (spec.head.min_workers, spec.head.max_workers) == (0, 0)
        assert (worker.min_workers, worker.max_workers) == (1, 10)
        assert worker.resources == {"GPU": 1}
        assert "resources" not in worker.node_config

    def test_their_origin_is_legacy(self) -> None:
        result = loaded(self.OLD)
        path = ("node_types", "ray-legacy-worker-node-type", "node_config", "InstanceType")
        assert str(result.origin_of(*path)) == "cluster.yaml:6, legacy worker_nodes"

    def test_a_head_alone_gets_the_default_worker(self) -> None:
        spec = loaded(AWS + "max_workers: 0\nhead_node: {InstanceType: p2.8xlarge}").spec
        worker = spec.node_types["ray-legacy-worker-node-type"]
        assert worker.node_config["InstanceMarketOptions"] == {"MarketType": "spot"}
        assert worker.max_workers == 0

    def test_with_node_types_they_are_the_base_of_each_type(self) -> None:
        result = loaded(
            AWS
            + "head_node: {KeyName: k, InstanceType: ignored}\nworker_nodes: {KeyName: w}\n"
            + TYPES
        )
        assert result.spec.head.node_config == {"KeyName": "k", "InstanceType": "m5.large"}
        cpu = result.spec.node_types["cpu"].node_config
        assert cpu == {"KeyName": "w", "InstanceType": "m5.xlarge"}
        assert len(result.warnings) == 2

    def test_resources_may_be_empty(self) -> None:
        spec = loaded(AWS + "head_node: {InstanceType: a, resources: }").spec
        assert spec.head.node_config == {"InstanceType": "a"}

    def test_empty_sections_are_ignored(self) -> None:
        assert loaded(AWS + "head_node: {}\nworker_nodes: {}").spec.head.name == "ray.head.default"


class TestTopLevelMinWorkers:
    """Top-level `min_workers` and `worker_default_node_type` in files with node types."""

    def test_it_applies_to_the_only_worker_type(self) -> None:
        result = loaded(AWS + "min_workers: 2\n" + TYPES)
        assert result.spec.node_types["cpu"].min_workers == 2
        origin = result.origin_of("node_types", "cpu", "min_workers")
        assert str(origin) == "cluster.yaml:2, legacy min_workers"

    def test_it_applies_to_the_default_worker_type(self) -> None:
        text = AWS + "min_workers: 2\nworker_default_node_type: gpu\n" + TYPES + "  gpu: {}\n"
        spec = loaded(text).spec
        assert spec.node_types["gpu"].min_workers == 2
        assert spec.node_types["cpu"].min_workers == 0

    def test_it_is_ignored_with_a_warning_if_there_are_several_worker_types(self) -> None:
        result = loaded(AWS + "min_workers: 2\n" + TYPES + "  gpu: {}\n")
        assert all(t.min_workers == 0 for t in result.spec.node_types.values())
        assert [warning.line for warning in result.warnings] == [2]

    def test_min_workers_of_a_node_type_takes_precedence(self) -> None:
        result = loaded(
            AWS + "min_workers: 2\n" + TYPES.replace("cpu: {", "cpu: {min_workers: 1, ")
        )
        assert result.spec.node_types["cpu"].min_workers == 1
        assert "min_workers is ignored" in str(result.warnings[0])


INIT_COMMANDS = """\
provider: {type: aws, region: us-west-2}
head_node: {InstanceType: m5.large}
worker_nodes: {InstanceType: m5.large}
head_init_commands:
  - cd ~/ray; git fetch
  - pip install boto3
  - ~/.local/bin/ray stop
  - ~/.local/bin/ray start --head --port=6379
worker_init_commands:
  - ray  start --address=$RAY_HEAD_IP:6379
"""


class TestInitCommands:
    """`head_init_commands` and `worker_init_commands` of 2017."""

    def test_they_set_a_node_up_and_then_start_ray(self) -> None:
        spec = loaded(INIT_COMMANDS).spec
        worker = spec.node_types["ray-legacy-worker-node-type"].setup
        assert spec.head_setup.setup_commands == ("cd ~/ray; git fetch", "pip install boto3")
        assert spec.head_setup.start_commands == (
            "~/.local/bin/ray stop",
            "~/.local/bin/ray start --head --port=6379",
        )
        assert worker.setup_commands == ()
        assert worker.start_commands == ("ray  start --address=$RAY_HEAD_IP:6379",)

    def test_their_origin_is_legacy(self) -> None:
        result = loaded(INIT_COMMANDS)
        origin = result.origin_of("head_setup", "start_commands")
        assert str(origin) == "cluster.yaml:7, legacy head_init_commands"

    def test_without_a_command_for_ray_they_only_set_a_node_up(self) -> None:
        spec = loaded("provider: {type: aws}\nhead_init_commands: [date]").spec
        assert spec.head_setup.setup_commands == ("date",)
        assert spec.head_setup.start_commands[0] == "ray stop"

    def test_current_keys_are_joined_to_them(self) -> None:
        spec = loaded(INIT_COMMANDS + "setup_commands: [first]\nhead_setup_commands: [last]").spec
        assert spec.head_setup.setup_commands[0] == "first"
        assert spec.head_setup.setup_commands[-1] == "last"


def test_legacy_autoscaler_settings_are_kept() -> None:
    scaling = loaded(
        AWS + "initial_workers: 2\nautoscaling_mode: default\ntarget_utilization_fraction: 0.8"
    ).spec.scaling
    assert scaling.initial_workers == 2
    assert scaling.autoscaling_mode == "default"
    assert scaling.target_utilization_fraction == 0.8
    assert scaling.upscaling_speed == 1


def test_aggressive_mode_does_not_limit_upscaling_unless_the_file_does() -> None:
    aggressive = AWS + "autoscaling_mode: aggressive\n"
    assert loaded(aggressive).spec.scaling.upscaling_speed > 1000
    assert loaded(aggressive + "upscaling_speed: 2").spec.scaling.upscaling_speed == 2


class TestCommands:
    COMMON = (
        "initialization_commands: [i]\nsetup_commands: [s]\n"
        "head_setup_commands: [h]\nworker_setup_commands: [w]\n"
    )

    def test_common_commands_run_first(self) -> None:
        spec = loaded(AWS + self.COMMON + TYPES).spec
        assert spec.setup_for("ray.head.default", "head").setup_commands == ("s", "h")
        assert spec.setup_for("cpu", "worker").setup_commands == ("s", "w")
        assert spec.setup_for("cpu", "worker").initialization_commands == ("i",)

    def test_commands_of_a_node_type_replace_all_others(self) -> None:
        own = TYPES.replace(
            "cpu: {", "cpu: {worker_setup_commands: [own], initialization_commands: [], "
        )
        setup = loaded(AWS + self.COMMON + own).spec.setup_for("cpu", "worker")
        assert setup.setup_commands == ("own",)
        assert setup.initialization_commands == ()

    def test_each_command_has_its_own_origin(self) -> None:
        result = loaded(AWS + self.COMMON + TYPES)
        lines = [str(result.origin_of("head_setup", "setup_commands", n)) for n in (0, 1)]
        assert lines == ["cluster.yaml:3", "cluster.yaml:4"]

    def test_default_setup_commands_install_ray_with_the_callers_command(self) -> None:
        def load_with_install(text: str) -> tuple[str, ...]:
            source = YamlText("cluster.yaml", text)
            return load(source, install_ray=lambda: "install").spec.head_setup.setup_commands

        assert load_with_install(AWS)[1] == "install"
        assert "install" not in loaded(AWS).spec.head_setup.setup_commands
        assert "install" not in load_with_install(AWS + "setup_commands: []")
        assert "install" not in load_with_install("provider: {type: embedded}")

    def test_default_start_commands_start_ray_without_its_autoscaler(self) -> None:
        setup = loaded(AWS).spec.head_setup
        assert setup.start_commands[1].endswith("--dashboard-host=0.0.0.0")
        assert not any("autoscaling-config" in command for command in setup.start_commands)


class TestContainers:
    DOCKER = (
        "docker:\n  image: all\n  head_image: heads\n  container_name: c\n"
        "  run_options: [-a]\n  head_run_options: [-h]\n  worker_run_options: [-w]\n"
    )

    def test_each_role_has_its_image_and_options(self) -> None:
        spec = loaded(AWS + self.DOCKER).spec
        head = spec.head_setup.container
        worker = spec.node_types["ray.worker.default"].setup.container
        assert head is not None
        assert worker is not None
        assert (head.image, head.run_options) == ("heads", ("-a", "-h"))
        assert (worker.image, worker.run_options) == ("all", ("-a", "-w"))

    def test_the_docker_section_of_a_node_type_is_merged(self) -> None:
        own = "{worker_image: mine, worker_run_options: [-m], pull_before_run: false}"
        spec = loaded(AWS + self.DOCKER + TYPES.replace("cpu: {", f"cpu: {{docker: {own}, ")).spec
        container = spec.node_types["cpu"].setup.container
        assert container is not None
        assert (container.image, container.run_options) == ("mine", ("-a", "-m"))
        assert not container.pull_before_run

    def test_podman_and_disabled_detection(self) -> None:
        docker = (
            "docker: {image: i, use_podman: true, disable_automatic_runtime_detection: true, "
            "disable_shm_size_detection: true}"
        )
        container = loaded(AWS + docker).spec.head_setup.container
        assert container is not None
        assert container.runtime == "podman"
        assert container.name
        assert not container.detect_gpu_runtime
        assert not container.detect_shm_size

    def test_a_registry_has_a_default_server(self) -> None:
        settings = loaded(AWS + "shoal: {registry: {username: me, password_env: P}}").spec.shoal
        assert settings.registry == RegistrySpec("docker.io", "me", "P")

    def test_no_image_means_no_container(self) -> None:
        assert loaded(AWS + "docker: {}").spec.head_setup.container is None
        blank = 'docker: {image: "", container_name: "", pull_before_run: true}'
        assert loaded(AWS + blank).spec.head_setup.container is None


class TestLocal:
    HOSTS = "provider: {type: local, head_ip: h, worker_ips: [a, b, c]}\n"

    @pytest.mark.parametrize(
        ("counts", "expected"),
        [
            ("", (3, 3, 3)),
            ("min_workers: 1", (1, 3, 3)),
            ("min_workers: 0\nmax_workers: 2", (0, 2, 2)),
            ("min_workers: 9\nmax_workers: 9", (3, 3, 3)),
        ],
    )
    def test_the_number_of_hosts_limits_the_worker_counts(
        self, counts: str, expected: tuple[int, int, int]
    ) -> None:
        spec = loaded(self.HOSTS + counts).spec
        node_type = spec.node_types["local.cluster.node"]
        assert (node_type.min_workers, node_type.max_workers, spec.scaling.max_workers) == expected

    def test_overrides_can_lower_the_counts(self) -> None:
        spec = loaded(self.HOSTS, min_workers=1, max_workers=2).spec
        node_type = spec.node_types["local.cluster.node"]
        assert (node_type.min_workers, node_type.max_workers) == (1, 2)

    def test_addresses_stay_in_the_provider_settings(self) -> None:
        settings = loaded(self.HOSTS).spec.provider.settings
        assert settings == {"head_ip": "h", "worker_ips": ["a", "b", "c"]}

    def test_a_file_that_ray_generated_loads(self) -> None:
        prepared = (
            "available_node_types: {local.cluster.node: {node_config: {}, resources: {}, "
            "min_workers: 1, max_workers: 2}}\nhead_node_type: local.cluster.node\nmax_workers: 2"
        )
        node_type = loaded(self.HOSTS + prepared).spec.node_types["local.cluster.node"]
        assert (node_type.min_workers, node_type.max_workers) == (1, 2)


class TestEmbedded:
    def test_the_default_is_a_head_and_two_workers(self) -> None:
        spec = default_embedded().spec
        assert spec.cluster_name == "local"
        assert spec.provider.type == "embedded"
        assert spec.node_types["worker"].min_workers == 2
        assert spec.head.resources == {"CPU": 1}

    def test_overrides_apply_to_the_default(self) -> None:
        spec = default_embedded(Overrides("mine", max_workers=1)).spec
        assert spec.cluster_name == "mine"
        assert (spec.node_types["worker"].min_workers, spec.scaling.max_workers) == (1, 1)

    def test_a_cloud_file_loads_with_only_its_provider_changed(self) -> None:
        cloud = (
            "initialization_commands: [sudo x]\nsetup_commands: [s]\n"
            "docker: {image: i, container_name: c}\nfile_mounts: {/a: /b}\n"
            "head_start_ray_commands: [ray start --head]\n" + TYPES
        )
        result = loaded("provider: {type: embedded}\n" + cloud)
        assert [warning.path[0] for warning in result.warnings] == [
            "docker",
            "initialization_commands",
            "head_start_ray_commands",
            "file_mounts",
        ]
        setup = result.spec.head_setup
        assert (setup.setup_commands, setup.start_commands, setup.container) == (("s",), (), None)
        assert result.spec.files.mounts == {}
        assert result.spec.node_types["cpu"].resources == {"CPU": 1}

    def test_a_file_without_a_provider_is_embedded_with_a_warning(self) -> None:
        result = loaded("cluster_name: a")
        assert result.spec.provider.type == "embedded"
        assert result.warnings[0].what == "no provider is set"


def test_worker_counts_of_node_types_default_as_in_ray() -> None:
    spec = loaded(AWS + "max_workers: 7\n" + TYPES).spec
    assert (spec.head.min_workers, spec.head.max_workers) == (0, 0)
    assert (spec.node_types["cpu"].min_workers, spec.node_types["cpu"].max_workers) == (0, 7)


def test_min_workers_of_the_head_type_without_max_workers_is_ignored() -> None:
    result = loaded(AWS + "available_node_types: {ray.head.default: {min_workers: 1}}")
    assert result.spec.head.min_workers == 0
    assert "min_workers of ray.head.default is ignored" in str(result.warnings[0])


def test_idle_timeouts_of_node_types_are_in_seconds_and_the_clusters_in_minutes() -> None:
    own = TYPES.replace("cpu: {", "cpu: {idle_timeout_s: 30, ")
    spec = loaded(AWS + "idle_timeout_minutes: 2\n" + own).spec
    assert spec.node_types["cpu"].idle_timeout_s == 30
    assert spec.head.idle_timeout_s == 120
    assert spec.scaling.idle_timeout_s == 120


def test_only_the_home_directory_in_local_paths_is_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = loaded(
        AWS + "auth: {ssh_private_key: ~/.ssh/k.pem}\n"
        "file_mounts: {~/there: ~/here/, /b: ./rel, /c: $HOME/x}\n"
        "cluster_synced_files: [~/on/the/head]\nsetup_commands: [echo ~ $HOME]"
    ).spec
    assert spec.auth.ssh_private_key == f"{tmp_path}/.ssh/k.pem"
    assert spec.files.mounts == {"~/there": f"{tmp_path}/here/", "/b": "./rel", "/c": "$HOME/x"}
    assert spec.files.cluster_synced == ("~/on/the/head",)
    assert spec.head_setup.setup_commands[0] == "echo ~ $HOME"


def test_what_a_provider_reads_is_unchanged() -> None:
    spec = loaded(
        "provider: {type: gcp, project_id: null, anything: [1, {a: null}]}\n"
        "available_node_types: {ray_head_default: {node_config: {scheduling: [{x: null}]}}}"
    ).spec
    assert spec.provider.settings == {"project_id": None, "anything": [1, {"a": None}]}
    assert spec.head.node_config == {"scheduling": [{"x": None}]}


def test_a_key_with_an_empty_value_gets_the_default() -> None:
    spec = loaded(AWS + "setup_commands:\ndocker:\nauth: {ssh_user: }\nmax_workers:\n").spec
    assert spec.scaling.max_workers == 2
    assert spec.auth.ssh_user == "ubuntu"
    assert len(spec.head_setup.setup_commands) == 2


def test_fractional_resources_are_rounded_down_with_a_warning() -> None:
    own = TYPES.replace(
        "cpu: {", "cpu: {resources: {GPU: 0.5, slot: 2.5, 'accelerator_type:T4': 1}, "
    )
    result = loaded(AWS + own)
    resources = result.spec.node_types["cpu"].resources
    assert resources == {"GPU": 0, "slot": 2, "accelerator_type:T4": 1}
    assert result.spec.head.resources == {}
    warnings = [warning.what for warning in result.warnings]
    assert "a node of type cpu will have 0 GPU, not 0.5" in warnings
    env = node_identity_env("i-1", "cpu", resources, {})
    assert json.loads(env["RAY_OVERRIDE_RESOURCES"]) == resources, "Ray and the planner agree"


def test_overrides_take_precedence_over_the_file() -> None:
    text = (
        AWS
        + "cluster_name: a\nmax_workers: 3\n"
        + TYPES.replace("cpu: {", "cpu: {min_workers: 1, ")
    )
    result = loaded(text, cluster_name="b", min_workers=2, max_workers=4)
    assert result.spec.cluster_name == "b"
    assert result.spec.scaling.max_workers == 4
    assert result.spec.node_types["cpu"].min_workers == 2
    assert str(result.origin_of("node_types", "cpu", "min_workers")) == "command line"
