"""Trainers of Hugging Face and Lightning whose workers change in number. They need the packages of
the extra `test-trainers`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.train.local_job import LocalJob
from tests.train.sample_log import BATCH, EPOCHS, SAMPLES, samples_by_step

pytestmark = [pytest.mark.workers, pytest.mark.long]

_SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize(
    ("library", "script"),
    [("transformers", "hugging_face_trainer.py"), ("lightning", "lightning_trainer.py")],
)
def test_it_grows_shrinks_and_uses_each_sample_once_per_epoch(
    library: str, script: str, tmp_path: Path
) -> None:
    pytest.importorskip(library)

    def starts() -> int:
        return (tmp_path / "w1.log").read_text().count('"start"')

    def steps() -> int:
        return max(samples_by_step(tmp_path), default=0)

    environment = {
        "SHOAL_TRAIN_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "PYTHONPATH": str(_SCRIPTS.parents[2]),
    }
    with LocalJob(_SCRIPTS / script, tmp_path, restarts=True, environment=environment) as job:
        job.wait_until(lambda: steps() >= 5, timeout=120)
        job.resize(2)
        job.wait_until(lambda: starts() == 2, timeout=120)
        before = steps()
        job.wait_until(lambda: steps() >= before + 5, timeout=120)
        job.resize(1)
        assert job.wait_for_end().status == 0, job.describe()
    used = samples_by_step(tmp_path)
    per_epoch = SAMPLES // BATCH
    assert sorted(used) == list(range(EPOCHS * per_epoch))
    for epoch in range(EPOCHS):
        of_epoch = Counter(
            i for step in range(epoch * per_epoch, (epoch + 1) * per_epoch) for i in used[step]
        )
        assert of_epoch == Counter(range(SAMPLES)), f"epoch {epoch}"
