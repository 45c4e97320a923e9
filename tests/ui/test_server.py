"""The page's server over HTTP: what it sends, refuses and runs."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.ops import sweep_registry
from shoal.ui.server import serve
from tests.polling import until
from tests.ui.heads import Heads, add_small_cluster, add_training_cluster


class Client:
    """The page's side."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self.session = session
        self.base = base

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.base + path) as reply:
            text = await reply.text()
            return reply.status, json.loads(text) if reply.content_type.endswith("json") else text

    async def post(self, path: str, body: object = None) -> tuple[int, Any]:
        async with self.session.post(self.base + path, data=json.dumps(body or {})) as reply:
            return reply.status, await reply.json()

    async def events(self, path: str) -> AsyncGenerator[tuple[str, Any], None]:
        kind = "message"
        async with self.session.get(self.base + path) as reply:
            assert reply.status == 200, await reply.text()
            async for raw in reply.content:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    yield kind, json.loads(line[6:])


@asynccontextmanager
async def page(made: Heads, **options: Any) -> AsyncIterator[Client]:
    async with serve(made.ctx, every=0.05, **options) as url:
        base, _, token = url.partition("/#token=")
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers, read_bufsize=2**24) as session:
            yield Client(session, base)


async def first(client: Client, path: str, kind: str) -> Any:
    """The first event of this kind with content."""
    async for each, data in client.events(path):
        if each == kind and data:
            return data
    raise AssertionError(f"no {kind}")


async def test_the_files_of_the_page_need_nothing_from_elsewhere(made: Heads) -> None:
    async with page(made) as client:
        status, text = await client.get("/")
        assert status == 200 and "/static/app.js" in text
        async with client.session.get(client.base + "/static/style.css") as reply:
            assert reply.status == 200
            policy = reply.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
        for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/server.py"):
            assert (await client.get(path))[0] == 404
    static = Path(__file__).parents[2] / "src/shoal/ui/static"
    for file in static.iterdir():
        others = set(re.findall(r"https?://[^\s\"']+", file.read_text()))
        assert others <= {"http://www.w3.org/2000/svg"}, file.name


async def test_it_listens_on_loopback_only(made: Heads) -> None:
    async with page(made) as client:
        assert client.base.startswith("http://127.0.0.1:")


async def test_an_overview_has_each_cluster_and_a_cluster_its_history(made: Heads) -> None:
    add_training_cluster(made, time.time())
    add_small_cluster(made, "demo", time.time(), nodes=3, provider="embedded")
    async with page(made) as client:
        found: dict[str, Any] = {}
        detail: dict[str, Any] = {"limits": {}}
        history: dict[str, Any] = {"samples": []}
        async for kind, data in client.events("/api/stream?cluster=llm-finetune"):
            if kind == "clusters":
                found.update({entry["cluster"]: entry for entry in data if entry["nodes"]})
            elif kind == "history":
                history = data
            elif kind == "cluster":
                detail = data
            if len(found) == 2 and detail["limits"] and history["samples"]:
                break
        assert found["demo"]["phases"] == {"ready": 3}
        assert round(found["llm-finetune"]["price_per_hour"], 2) == 6.21
        assert {row["market"] for row in detail["cost_rows"]} == {"spot", "on-demand"}
        assert len(history["samples"]) > 300
        assert {d["action"] for d in history["decisions"]} >= {"launch", "drain", "failed"}
        assert detail["waiting"][1]["fix"].endswith("shoal up llm-finetune")


async def test_no_secret_of_a_cluster_is_sent(made: Heads) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=1)
    (head.home / ".shoal" / "auth_token").write_text("the-clusters-token")
    async with page(made) as client:
        sent = []
        async for kind, data in client.events("/api/stream?cluster=demo"):
            sent.append(json.dumps(data))
            if kind == "history":
                break
    assert "the-clusters-token" not in "".join(sent)
    assert str(head.home) not in "".join(sent)


async def test_ten_thousand_decisions_are_sent_once(made: Heads) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=1)
    began = time.time() - 10_000
    for number in range(10_000):
        head.decide(began + number, "launch", f"{number} x gpu", "they wait")
    head.publish()
    async with page(made) as client:
        counts: list[int] = []
        async for kind, data in client.events("/api/stream?cluster=demo"):
            if kind == "history" and data["decisions"]:
                counts.append(len(data["decisions"]))
                if len(counts) == 1:
                    head.decide(time.time(), "drain", "worker-1", "idle")
                else:
                    break
        assert counts == [10_001, 1]


async def test_terminating_asks_first_and_no_changes_nothing(made: Heads) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=3)
    async with page(made) as client:
        await first(client, "/api/stream", "clusters")
        events = await run_action(client, "demo", "down", answer=False)
        question = next(e for e in events if e["event"] == "question")
        assert question["text"].endswith("Terminate all nodes of cluster demo?")
        assert question["destructive"]
        assert events[-1] == {"event": "done", "ok": True, "declined": True}
        assert head.terminated == 0
        events = await run_action(client, "demo", "down", answer=True)
        assert events[-1]["ok"] and not events[-1]["declined"], events
        assert head.terminated == 3
        assert next(e["subject"] for e in events if e["event"] == "plan") == "head"


async def run_action(
    client: Client, cluster: str, action: str, *, answer: bool, body: object = None
) -> list[dict[str, Any]]:
    """All events of an action whose questions are answered like this."""
    status, reply = await client.post(f"/api/clusters/{cluster}/actions/{action}", body)
    assert status == 200, reply
    events = []
    async for _, event in client.events(f"/api/actions/{reply['id']}"):
        events.append(event)
        if event["event"] == "question":
            await client.post(f"/api/actions/{reply['id']}/answer", {"yes": answer})
    return events


async def test_a_question_whose_page_was_closed_is_answered_with_no(
    made: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.ui.server._RELOAD_SECONDS", 0.05)
    head = add_small_cluster(made, "demo", time.time(), nodes=2)
    async with page(made) as client:
        await first(client, "/api/stream", "clusters")
        _, reply = await client.post("/api/clusters/demo/actions/down")
        path = f"/api/actions/{reply['id']}"
        async with aclosing(client.events(path)) as events:
            async for _, event in events:
                if event["event"] == "question":
                    break
        thread = f"action-{reply['id']}"
        await until(lambda: thread not in [t.name for t in threading.enumerate()], "the end")
        seen = [event async for _, event in client.events(path)]
        assert seen[-1]["declined"]
        assert head.terminated == 0


async def test_mistakes_are_answered_with_what_why_and_fix(made: Heads) -> None:
    add_small_cluster(made, "demo", time.time(), nodes=1)
    async with page(made) as client:
        await first(client, "/api/stream", "clusters")
        assert (await client.post("/api/clusters/nope/actions/down"))[0] == 404
        assert (await client.post("/api/clusters/demo/actions/explode"))[0] == 404
        assert (await client.get("/api/nothing"))[0] == 404
        status, reply = await client.post("/api/simulations", {"cluster": "x: 1", "trace": "{}"})
        assert status == 500 and "simulation cannot run" in reply["error"]["what"]
        events = await run_action(
            client, "demo", "limits", answer=True, body={"max_workers": "many"}
        )
        assert "max_workers must be a whole number" in events[-1]["error"]["what"]
        events = await run_action(client, "demo", "drain", answer=True, body={"node": "head"})
        assert events[-1]["error"]["fix"] == "terminate the cluster: shoal down demo"


async def test_a_read_only_page_shows_and_refuses(made: Heads) -> None:
    head = add_small_cluster(made, "demo", time.time(), nodes=1)
    async with page(made, read_only=True) as client:
        assert await first(client, "/api/stream", "clusters")
        status, reply = await client.post("/api/clusters/demo/actions/down")
        assert status == 403 and "read-only" in reply["error"]["what"]
        assert head.terminated == 0


async def test_two_policies_are_simulated_in_one_request(made: Heads) -> None:
    cluster = """
cluster_name: c
provider: {type: aws, region: us-west-2}
max_workers: 4
available_node_types:
  head: {node_config: {InstanceType: m5.large}, resources: {CPU: 2}}
  cpu: {node_config: {InstanceType: m5.large}, resources: {CPU: 2}, max_workers: 4}
head_node_type: head
"""
    trace = '{"at": 0, "resources": {"CPU": 1}, "count": 12, "seconds": 60}'
    async with page(made) as client:
        asked = {"cluster": cluster, "trace": trace, "changes": "max_workers=1"}
        status, results = await client.post("/api/simulations", asked)
        assert status == 200, results
        assert [r["policy"] for r in results] == ["unchanged", "max_workers=1"]
        assert results[1]["wait_max"] > results[0]["wait_max"]
        assert results[0]["samples"]


async def test_the_journal_and_the_output_of_a_training_are_read_from_the_head(
    made: Heads,
) -> None:
    add_small_cluster(made, "demo", time.time(), nodes=1).train("mnist-1")
    async with page(made) as client:
        _, entries = await client.get("/api/clusters/demo/trainings/mnist-1")
        # The line that is half written is left out.
        assert sum(entry["kind"] == "progress" for entry in entries) == 40
        assert (await client.get("/api/clusters/demo/trainings/mnist-1/log"))[1] == "epoch 1 of 3"
        assert (await client.get("/api/clusters/demo/trainings/..%2f..%2fx"))[0] == 404
        assert (await client.get("/api/clusters/demo/trainings/other"))[1] == []


async def test_sweeps_of_this_machine_are_listed_with_their_results(
    made: Heads, tmp_path: Path
) -> None:
    directory = tmp_path / "sweep"
    (directory / "runs/0001").mkdir(parents=True)
    (directory / "runs/0001/output.log").write_text("loss 0.5\n")
    runs = [{"number": 1, "params": {"lr": 0.1}}, {"number": 2, "params": {"lr": 0.2}}]
    spec = {"id": "train-1", "script": "train.py", "runs": runs, "arguments": [], "skip": []}
    (directory / "sweep.json").write_text(json.dumps(spec))
    result = {"run": 1, "params": {"lr": 0.1}, "status": "ok", "seconds": 2.0,
              "metrics": {"loss": 0.5}}  # fmt: skip
    (directory / "results.jsonl").write_text(json.dumps(result) + "\n")
    sweep_registry.record(made.ctx, directory)
    async with page(made) as client:
        (sweep,) = (await client.get("/api/sweeps"))[1]
        assert (sweep["id"], sweep["runs"], sweep["done"]) == ("train-1", 2, 1)
        _, detail = await client.get("/api/sweeps/train-1")
        assert detail["results"][0]["metrics"] == {"loss": 0.5}
        assert (await client.get("/api/sweeps/train-1/runs/1/log"))[1] == "loss 0.5\n"
        assert (await client.get("/api/sweeps/train-1/runs/..%2f/log"))[0] == 404
        assert (await client.get("/api/sweeps/other"))[0] == 404


async def test_ending_the_server_ends_what_follows_the_heads(made: Heads) -> None:
    add_small_cluster(made, "demo", time.time(), nodes=1)
    async with page(made) as client:
        await first(client, "/api/stream", "clusters")
    others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    await until(lambda: all(t.done() for t in others), "the end of all tasks", timeout=10)
