"""The adapter on classes that are sloppy in every way that the classes of other people are."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    QuotaError,
    ShoalError,
    TransientError,
)
from shoal.core.events import Event, LaunchAttempted
from shoal.providers.conformance.checks import Suite
from shoal.providers.external import launcher, node_provider_driver
from shoal.providers.external.external_provider import ExternalProvider
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.remote.runner import capture
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests.polling import until
from tests.providers.external import sloppy_classes
from tests.providers.external.sloppy_classes import FileCloud
from tests.specs import cluster

WORKERS = LaunchRequest("worker", "worker", 2, "t-1")
_tokens = itertools.count(1)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_LAG_SECONDS", 1.5)
    monkeypatch.setattr(launcher, "_POLL_SECONDS", 0.05)
    FileCloud.calls.clear()


class Killed(BaseException):
    """The process ends here."""


class Bed:
    """A cloud in a file, and providers for it as separate processes would make them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []

    def spec(self, kind: str, **settings: Any) -> ClusterSpec:
        module = f"{sloppy_classes.__name__}.{kind}"
        values = {"module": module, "file": str(self.directory / "cloud.json"), **settings}
        return replace(cluster(name="mine"), provider=ProviderSpec("external", values))

    def provider(
        self, kind: str, *, home: str = "home", on_head: bool = True, **settings: Any
    ) -> ExternalProvider:
        spec = self.spec(kind, **settings)
        return ExternalProvider(
            spec, self.directory / home, SystemClock(), self.events.append, on_head=on_head
        )

    async def launch(self, kind: str, count: int = 2, **settings: Any) -> Sequence[Instance]:
        request = LaunchRequest("worker", "worker", count, f"token-{next(_tokens)}")
        return await self.provider(kind, **settings).launch(self.spec(kind, **settings), [request])


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


@pytest.mark.parametrize(
    "kind", ["FileCloud", "ReturnsNothing", "LosesTags", "ListsLate", "NoAddressYet", "Batches"]
)
async def test_a_launch_finds_its_nodes_however_the_class_reports_them(bed: Bed, kind: str) -> None:
    first, second = await bed.launch(kind), await bed.launch(kind, count=1)
    assert [i.id for i in (*first, *second)] == ["n-1", "n-2", "n-3"]
    assert [i.address for i in first] == ["10.9.0.1", "10.9.0.2"]
    listed = await bed.provider(kind).list_instances("mine")
    assert {(i.role, i.node_type) for i in listed} == {("worker", "worker")}


@pytest.mark.parametrize("kind", ["FileCloud", "LosesTags", "ListsLate", "Batches"])
async def test_the_same_token_launches_nothing_more(bed: Bed, kind: str) -> None:
    spec = bed.spec(kind)
    first = await bed.provider(kind).launch(spec, [WORKERS])
    again = await bed.provider(kind).launch(spec, [WORKERS])
    assert [i.id for i in again] == [i.id for i in first]
    assert len(await bed.provider(kind).list_instances()) == 2


async def test_a_launch_that_was_killed_in_the_call_is_adopted_without_tags(bed: Bed) -> None:
    """The process dies after the cloud has created the nodes, and before the class returns."""
    spec = bed.spec("LosesTags")

    def killed(self: Any, *arguments: Any) -> None:
        FileCloud.create_node(self, *arguments)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sloppy_classes.LosesTags, "create_node", killed)
        with pytest.raises(Killed):
            await bed.provider("LosesTags").launch(spec, [WORKERS])
    repeated = await bed.provider("LosesTags").launch(spec, [WORKERS])
    assert [i.id for i in repeated] == ["n-1", "n-2"]
    assert sum(name == "create_node" for name, _ in FileCloud.calls) == 1


@pytest.mark.parametrize("kind", ["ReturnsNothing", "LosesTags"])
async def test_what_a_killed_launch_has_not_created_is_created_by_the_next(
    bed: Bed, kind: str
) -> None:
    spec = bed.spec(kind)

    def killed(self: Any, node_config: Any, tags: Any, count: int) -> None:
        FileCloud.create_node(self, node_config, tags, 1)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(getattr(sloppy_classes, kind), "create_node", killed)
        with pytest.raises(Killed):
            await bed.provider(kind).launch(spec, [WORKERS])
    repeated = await bed.provider(kind).launch(spec, [WORKERS])
    assert [i.id for i in repeated] == ["n-1", "n-2"]


async def test_a_refused_launch_is_not_waited_for_by_the_next(bed: Bed) -> None:
    head = LaunchRequest("head", "head", 1, "first")
    refused = bed.spec("Refuses", category="capacity")
    with pytest.raises(CapacityError):
        await bed.provider("Refuses", on_head=False, category="capacity").launch(refused, [head])
    FileCloud.calls.clear()
    provider = bed.provider("FileCloud", on_head=False)
    await provider.launch(bed.spec("FileCloud"), [replace(head, token="second")])
    names = [name for name, _ in FileCloud.calls]
    assert names[:4] == ["__init__", "non_terminated_nodes", "safe_to_scale", "create_node"]


async def test_an_interrupted_launch_of_the_head_is_found_by_the_next_up(bed: Bed) -> None:
    """The listing lags, so the next `up`, with another token, plans a head too."""
    spec = bed.spec("ListsLate", lag=0.5)

    def killed(self: Any, *arguments: Any) -> None:
        FileCloud.create_node(self, *arguments)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sloppy_classes.ListsLate, "create_node", killed)
        with pytest.raises(Killed):
            request = LaunchRequest("head", "head", 1, "first")
            await bed.provider("ListsLate", on_head=False).launch(spec, [request])
    request = LaunchRequest("head", "head", 1, "second")
    (head,) = await bed.provider("ListsLate", on_head=False).launch(spec, [request])
    assert (head.id, head.role, head.name) == ("n-1", "head", "head")


async def test_fewer_nodes_than_requested_are_returned_with_the_reason(bed: Bed) -> None:
    assert [i.id for i in await bed.launch("OnlyOne")] == ["n-1"]
    (event,) = [e for e in bed.events if isinstance(e, LaunchAttempted)]
    assert (event.launched, event.error) == (1, "OnlyOne launched 1 of 2")


async def test_calls_come_from_one_thread_in_rays_order_with_nothing_in_between(bed: Bed) -> None:
    provider = bed.provider("Batches")
    await asyncio.gather(
        *(
            provider.launch(bed.spec("Batches"), [replace(WORKERS, token=f"c{n}")])
            for n in range(3)
        ),
        *(bed.provider("Batches").list_instances() for _ in range(3)),
    )
    names = [name for name, _ in FileCloud.calls]
    assert len({thread for _, thread in FileCloud.calls}) == 1
    assert names.count("__init__") == 1
    creations = [i for i, name in enumerate(names) if name == "safe_to_scale"]
    assert len(creations) == 3
    for i in creations:
        assert names[i - 1 : i + 3] == [
            "non_terminated_nodes",
            "safe_to_scale",
            "post_process",
            "create_node",  # the batch is submitted
        ]
    assert len(await provider.list_instances()) == 6


async def test_a_call_that_hangs_is_given_up_and_later_ones_fail_at_once(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_provider_driver, "_CREATE_SECONDS", 0.3)
    spec = bed.spec("Hangs")
    provider = bed.provider("Hangs")
    with pytest.raises(TransientError, match="create_node has not returned within"):
        await provider.launch(spec, [WORKERS])
    with pytest.raises(TransientError, match="create_node has not returned for"):
        await asyncio.wait_for(provider.list_instances(), 1.0)
    sloppy_classes.Hangs.released.set()

    async def answers() -> bool:
        try:
            return len(await provider.list_instances()) == 2
        except TransientError:
            return False

    await until(answers, "the class answers again")
    repeated = await provider.launch(spec, [WORKERS])
    assert [i.id for i in repeated] == ["n-1", "n-2"]
    assert sum(name == "create_node" for name, _ in FileCloud.calls) == 1


async def test_a_call_that_never_returns_makes_room_for_another_instance(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.providers.external import call_thread

    monkeypatch.setattr(node_provider_driver, "_CREATE_SECONDS", 0.2)
    monkeypatch.setattr(call_thread, "_ABANDONED_SECONDS", 0.3)
    sloppy_classes.Hangs.released.clear()
    provider = bed.provider("Hangs")
    with pytest.raises(TransientError):
        await provider.launch(bed.spec("Hangs"), [WORKERS])

    async def answers() -> bool:
        try:
            return len(await provider.list_instances()) == 2
        except TransientError:
            return False

    await until(answers, "a new instance answers")
    sloppy_classes.Hangs.released.set()
    assert [name for name, _ in FileCloud.calls].count("__init__") == 2


@pytest.mark.parametrize(
    ("category", "error"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", CapacityError),
        ("no offers", CapacityError),
        ("VcpuLimitExceeded", QuotaError),
        ("QUOTA_EXCEEDED", QuotaError),
        ("budget", QuotaError),
        ("UnauthorizedOperation", AuthError),
        ("InvalidParameterValue", ConfigError),
        ("RequestLimitExceeded", TransientError),
        ("Throttling", TransientError),
        ("whatever", TransientError),
    ],
)
async def test_a_launch_exception_becomes_the_error_of_its_category(
    bed: Bed, category: str, error: type[ShoalError]
) -> None:
    with pytest.raises(error) as caught:
        await bed.launch("Refuses", category=category)
    assert caught.value.what == "Refuses.create_node failed"
    assert caught.value.why == f"{category}: no"


async def test_tags_that_cannot_be_set_are_no_obstacle(bed: Bed) -> None:
    await bed.launch("FileCloud")
    tag_status = bed.provider("FileCloud").capabilities.tag_status
    assert tag_status is not None
    await tag_status({"n-1": "setting-up"})
    with pytest.raises(ShoalError):  # which the tagger logs
        await tag_status({"n-1": "up-to-date"})


async def test_terminated_nodes_are_gone_and_can_be_terminated_again(bed: Bed) -> None:
    instances = await bed.launch("FileCloud")
    provider = bed.provider("FileCloud")
    await provider.terminate(bed.spec("FileCloud"), instances[:1])
    assert [i.id for i in await provider.list_instances()] == ["n-2"]
    await provider.terminate(bed.spec("FileCloud"), instances)
    assert await provider.list_instances() == []


async def test_a_node_without_an_address_is_pending(bed: Bed) -> None:
    provider = bed.provider("NoAddressYet")
    launching = asyncio.ensure_future(
        provider.launch(bed.spec("NoAddressYet"), [replace(WORKERS, token="p")])
    )
    states: set[State] = set()

    async def seen() -> bool:
        states.update(i.state for i in await provider.list_instances())
        return launching.done()

    await until(seen)
    assert State.PENDING in states
    assert {i.state for i in await launching} == {State.RUNNING}


async def test_a_class_with_its_own_command_runner_is_asked_to_run_commands(
    bed: Bed, tmp_path: Path
) -> None:
    instance, _ = await bed.launch("HasRunner")
    provider = bed.provider("HasRunner")
    await provider.list_instances()
    runner = provider.runner(bed.spec("HasRunner"), instance)
    await runner.connect(timeout=10)
    done, lines = await capture(
        runner,
        'echo "$WHO"; cat; echo err >&2; exit 3',
        env={"WHO": "it's me"},
        stdin=b"given\n",
        timeout=10,
    )
    assert (done.code, lines) == (3, ["it's me", "given"])
    assert done.tail == ("it's me", "given", "err")
    (tmp_path / "file").write_text("content")
    await runner.put(tmp_path / "file", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_text() == "content"
    assert await runner.attach(None, tty=False) == 0


async def test_what_a_class_prints_is_not_on_standard_output(
    bed: Bed, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await bed.launch("Prints")
    print("ours")
    assert capsys.readouterr().out == "ours\n"
    assert "creating 2 nodes" in caplog.text


async def test_what_a_class_prints_can_be_logged_to_standard_error(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("shoal.providers.external")
    handler = logging.StreamHandler()
    handler.emit = lambda record: print(record.getMessage(), file=sys.stderr)  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        await bed.launch("Prints")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err.count("creating 2 nodes") == 1


async def test_what_the_class_fills_in_is_used_for_the_head_and_sent_to_it(bed: Bed) -> None:
    spec = bed.spec("FillsIn")
    provider = bed.provider("FillsIn", on_head=False)
    await provider.launch(spec, [LaunchRequest("head", "head", 1, "h")])
    nodes = json.loads((bed.directory / "cloud.json").read_text())
    assert nodes["n-1"]["config"] == {"role": "may launch", "network": "net-1"}
    head_spec = bed.provider("FillsIn", on_head=False).capabilities.head_spec
    assert head_spec is not None
    sent = head_spec(spec)
    assert sent.node_types["worker"].node_config == {"network": "net-1"}
    assert sent.auth.ssh_private_key == "/keys/made"
    assert sent.provider.settings["prepared"] is True
    assert sent.node_types["worker"].resources == {"CPU": 1}, "the file's own win"
    names = [name for name, _ in FileCloud.calls]
    assert names.count("bootstrap_config") == 1, "it is kept on this machine"


async def test_nodes_that_start_ray_themselves_need_no_address(bed: Bed) -> None:
    launched = await bed.launch("NoAddress", disable_node_updaters=True)
    assert [(i.id, i.address, i.state) for i in launched] == [
        ("n-1", "", State.RUNNING),
        ("n-2", "", State.RUNNING),
    ]
    provider = bed.provider("NoAddress", disable_node_updaters=True)
    assert provider.capabilities.workers_start_ray


async def test_the_adapter_conforms(bed: Bed) -> None:
    spec = bed.spec("FileCloud")
    suite = Suite(lambda: bed.provider("FileCloud", on_head=False), spec, SystemClock())
    results = await suite.run(lambda result: None)
    failed = {r.name: r.detail for r in results if r.outcome == "failed"}
    assert failed == {}


async def test_doctor_says_what_a_class_that_loses_tags_cannot_promise(bed: Bed) -> None:
    head = LaunchRequest("head", "head", 1, "h")
    provider = bed.provider("LosesTags", on_head=False)
    await provider.launch(bed.spec("LosesTags"), [head])
    findings = await provider.preflight(bed.spec("LosesTags"))
    assert [(f.severity, f.what) for f in findings] == [
        ("warning", "the node provider does not keep tags")
    ]


async def test_preflight_explains_a_class_that_cannot_be_loaded(bed: Bed) -> None:
    async def problems(module: str) -> list[str]:
        spec = bed.spec("FileCloud", module=module)
        provider = ExternalProvider(
            spec, bed.directory, SystemClock(), bed.events.append, on_head=False
        )
        return [f.what for f in await provider.preflight(spec) if f.severity == "error"]

    assert await problems("not_there.Class") == ["cannot find the Python module not_there"]
    assert await problems("json.Class") == ["json has no class Class"]
    assert await problems("json.JSONDecoder") == ["json.JSONDecoder is not a node provider"]


async def test_doctor_says_that_nodes_which_start_ray_themselves_need_the_token(bed: Bed) -> None:
    """An error would be wrong: a class may give it to them, as `ray-vast` does."""
    spec = bed.spec("FileCloud", disable_node_updaters=True)
    findings = await bed.provider("FileCloud", on_head=False).preflight(spec)
    assert [(f.severity, f.what) for f in findings] == [
        ("warning", "the workers join only if the class gives them the cluster's token")
    ]
