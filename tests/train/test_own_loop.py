"""A loop of the script's own with `shoal.train.prepare`, on workers that come, go and die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.train.job.sizing import TIME
from shoal.train.torch.sampler import pass_order
from tests.train.local_job import LocalJob
from tests.train.scripts import own_loop, sleeping
from tests.train.training_audit import epochs

pytestmark = pytest.mark.workers


def _undisturbed_loss(feature: str, count: int) -> float:
    """The same training by plain PyTorch, with the same order of samples."""
    model, optimizer, scheduler = own_loop.build(feature)
    for epoch in range(count):
        order = pass_order(own_loop.SAMPLES, feature != "stream", epoch)
        for start in range(0, own_loop.SAMPLES, own_loop.BATCH):
            batch = [own_loop.sample(i) for i in order[start : start + own_loop.BATCH]]
            x, y = torch.stack([s[1] for s in batch]), torch.stack([s[2] for s in batch])
            optimizer.zero_grad()
            own_loop.loss_of(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
    return own_loop.evaluate(model)


def _train(directory: Path, feature: str) -> list[dict[str, Any]]:
    """Grow from one worker to two, lose one, replace it, and end."""
    script, environment = Path(own_loop.__file__), {"FEATURE": feature}
    with LocalJob(script, directory, environment=environment) as job:
        job.wait_for_workers(1)
        job.resize(2)
        job.wait_for_workers(2)
        job.wait_for_step(job.step() + 15)
        killed = job.members()[1]
        job.signal(killed)
        job.wait_until(lambda: killed not in job.members() and len(job.members()) == 2)
        (directory / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
    lines = epochs(directory)
    assert [line["epoch"] for line in lines] == list(range(len(lines)))
    assert max(max(line["trained"]) for line in lines) == 1
    lost = sum(line["trained"].count(0) for line in lines)
    assert lost <= own_loop.BATCH  # what the killed worker had counted in its last step
    assert any(line["changes"] == [0, 2] for line in lines)
    return lines


@pytest.mark.parametrize(
    "feature",
    [
        "accumulated",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("compiled", "stream")),
    ],
)
def test_it_ends_as_if_nothing_had_happened(tmp_path: Path, feature: str) -> None:
    lines = _train(tmp_path, feature)
    assert lines[-1]["loss"] == pytest.approx(_undisturbed_loss(feature, len(lines)), abs=1e-9)


def test_a_compiled_model_trains_like_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    with LocalJob(Path(own_loop.__file__), tmp_path, environment={"FEATURE": "compiled"}) as job:
        assert job.wait_for_end().status == 0, job.describe()
    (line,) = epochs(tmp_path)
    assert line["loss"] == pytest.approx(_undisturbed_loss("compiled", 1), abs=1e-9)
    reported = [r.values["values"]["loss"] for r in job.records if r.kind == "metrics"]
    assert reported and all(loss > 0 for loss in reported)


def test_two_models_in_one_loop_stay_in_step(tmp_path: Path) -> None:
    lines = _train(tmp_path, "two_models")
    expected = _undisturbed_loss("two_models", len(lines))
    # A worker that dies between the two optimizers' steps can cost one step of the second.
    assert lines[-1]["loss"] == pytest.approx(expected, rel=0.05)
    assert lines[-1]["critic"] < lines[0]["critic"]


def test_batch_statistics_and_a_gradient_scaler_survive_changes_of_the_workers(
    tmp_path: Path,
) -> None:
    lines = _train(tmp_path, "batchnorm")
    assert lines[-1]["loss"] < lines[0]["loss"] / 2


def test_the_job_takes_the_workers_that_pay_and_gives_back_the_others(tmp_path: Path) -> None:
    """The steps cost what the script says, by sleeping."""
    script, environment = Path(sleeping.__file__), {"PARALLEL": "0.2", "SERIAL": "0.05"}
    with LocalJob(script, tmp_path, workers=4, environment=environment, objective=TIME) as job:
        job.wait_until(lambda: any(r.kind == "decision" for r in job.records), timeout=120)
        job.wait_for_workers(2, timeout=120)
        (tmp_path / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
    decision = next(r for r in job.records if r.kind == "decision")
    assert "faster" in decision.text
    assert {row["workers"] for row in decision.values["sizes"]} == {1, 2, 3, 4}
