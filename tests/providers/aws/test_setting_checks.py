"""Settings that have no effect, and the instance id as SSH host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.providers.aws.instances import read_instance
from shoal.providers.aws.preflight import setting_checks
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.providers.vm.ssh_targets import InstanceRunners
from shoal.providers.vm.waiters import TerminationWatch
from shoal.spec.cluster_spec import AuthSpec, ClusterSpec, ProviderSpec
from tests.providers.aws.manual_clock import ManualClock
from tests.providers.aws.test_stopped_workers import record
from tests.specs import cluster

PROXY = "aws ssm start-session --target %h --document-name AWS-StartSSHSession"


def with_settings(**settings: Any) -> ClusterSpec:
    return replace(cluster(), provider=ProviderSpec("aws", settings))


def test_known_provider_settings_have_no_findings() -> None:
    spec = with_settings(region="us-west-2", use_internal_ips=True, cache_stopped_nodes=False)
    assert setting_checks.check_settings(spec) == []


def test_ignored_provider_settings_are_reported_with_what_to_do_instead() -> None:
    spec = with_settings(cloudwatch={}, key_pair={}, availabilty_zone="us-west-2a", other=1)
    findings = {f.what: f for f in setting_checks.check_settings(spec)}
    assert {f.severity for f in findings.values()} == {"warning"}
    assert "CloudWatch agent" in findings["provider.cloudwatch is ignored"].fix
    assert "KeyName" in findings["provider.key_pair is ignored"].fix
    assert findings["provider.availabilty_zone is ignored"].fix == "rename it: availability_zone"
    assert findings["provider.other is ignored"].fix == "remove other"


def test_session_manager_needs_an_instance_profile() -> None:
    auth = AuthSpec(ssh_proxy_command=PROXY, ssh_proxy_use_node_id=True)
    spec = replace(with_settings(region="us-west-2"), auth=auth)
    findings = setting_checks.check_settings(spec)
    assert [f.at[1] for f in findings] == ["head", "worker"]
    assert "AmazonSSMManagedInstanceCore" in findings[0].fix


def test_the_proxy_command_gets_the_instance_id_as_host(tmp_path: Path) -> None:
    auth = AuthSpec(ssh_proxy_command=PROXY, ssh_proxy_use_node_id=True)
    spec = replace(with_settings(region="us-west-2"), auth=auth)
    clock = ManualClock()

    async def describe(ids: Any) -> Any:
        return []

    runners = InstanceRunners(
        spec,
        tmp_path,
        LaunchRecords(tmp_path / "launches", clock),
        TerminationWatch(describe, clock),
        clock,
        None,
        in_vpc=False,
    )
    head = read_instance(record("i-head", "running"), "ubuntu")
    worker = read_instance(record("i-worker", "running"), "ubuntu")
    target = runners.runner(worker, head).target
    assert (target.host, target.jump, target.proxy_command) == ("i-worker", None, PROXY)
