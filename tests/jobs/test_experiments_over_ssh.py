"""Sweeps of Sacred experiments and a Hydra app, with the real packages, on hosts whose Ray is in a
virtualenv that uv made. All tests share one cluster."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.jobs.programs import requirements, write_file
from tests.jobs.ssh_job_bed import JobBed, job_bed
from tests.ops.package_index import fetch_wheels
from tests.polling import until

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "sacred"
MONGO_PORT = 27017
HYDRA = """
import json
import hydra
from omegaconf import DictConfig

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    print(json.dumps({"area": config.model.width * config.height}))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The newest packages, and an older setuptools."""
    folder = tmp_path_factory.mktemp("wheels")
    for requirement in ("sacred", "setuptools", "setuptools<81", "pymongo", "hydra-core"):
        fetch_wheels(folder, requirement)
    return sorted(folder.glob("*.whl"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(wheels: list[Path]) -> AsyncIterator[JobBed]:
    async with job_bed(workers=1, min_workers=1, max_workers=1, idle_timeout_minutes=60) as bed:
        assert bed.index is not None
        bed.index.add(*wheels)
        for name in ("train.py", "dataset.py"):
            await write_file(bed.laptop, f"code/{name}", (EXAMPLE / name).read_text())
        await write_file(
            bed.laptop, "code/fresh.txt", requirements(bed.index, "sacred", "setuptools")
        )
        pinned = requirements(bed.index, "sacred", "setuptools<81", "pymongo")
        await write_file(bed.laptop, "code/pinned.txt", pinned)
        up = await bed.laptop_run("shoal up c.yaml --yes", cwd=".")
        assert up.code == 0, up.stdout + up.stderr
        yield bed


async def test_sacred_fails_with_todays_setuptools_and_the_proposed_line_fixes_it(
    bed: JobBed,
) -> None:
    sweep = "shoal sweep train.py mine --requirements fresh.txt --grid lr=0.1,0.2 -o fresh"
    failed = await bed.laptop_run(sweep)
    assert failed.code == 1, failed.stdout + failed.stderr
    (fix,) = [line for line in failed.stderr.splitlines() if line.startswith("fix: ")]
    line = fix.partition("add this line to requirements.txt: ")[2]
    assert line
    await bed.laptop_run(f"echo '{line}' >> fresh.txt")
    done = await bed.laptop_run(f"{sweep} --retry-failed")
    assert done.code == 0, done.stdout + done.stderr
    assert {r["status"] for r in await results_of(bed, "fresh")} == {"ok"}


async def test_an_unmodified_experiment_leaves_its_runs_in_one_place(bed: JobBed) -> None:
    """Ingredients, named configs, log_scalar, artifacts and captured output."""
    done = await bed.laptop_run(
        "shoal sweep train.py mine --requirements pinned.txt --grid '@config=slow,null' "
        "--grid data.noise=0.0,0.1 --cpus 0.5 -o sacred -- with epochs=5"
    )
    assert done.code == 0, done.stdout + done.stderr
    out = home(bed) / "sacred"
    runs = sorted(path.name for path in (out / "sacred").iterdir())
    assert runs == ["1", "2", "3", "4", "_sources"]
    results = await results_of(bed, "sacred")
    assert len({result["node"] for result in results}) == 2, "both nodes have run some"
    for result in results:
        directory = out / "sacred" / str(result["run"])
        config = json.loads((directory / "config.json").read_text())
        named, noise = (result["params"][name] for name in ("@config", "data.noise"))
        assert config["data"]["noise"] == noise
        assert (config["lr"], config["epochs"]) == (0.001 if named else 0.1, 5)
        logged = json.loads((directory / "metrics.json").read_text())["loss"]
        assert logged["steps"] == [0, 1, 2, 3, 4]
        assert result["metrics"]["loss"] == logged["values"][-1] == result["metrics"]["result"]
        assert "y = " in (directory / "cout.txt").read_text()
        assert len((directory / "weights.txt").read_text().split()) == 2
        assert json.loads((directory / "run.json").read_text())["status"] == "COMPLETED"


async def test_a_mongo_observer_gets_the_runs_too(bed: JobBed, wheels: list[Path]) -> None:
    assert bed.index is not None
    database = bed.index.host
    packages = database.root() / "srv/mongo"
    for wheel in wheels:
        if wheel.name.startswith("pymongo"):
            zipfile.ZipFile(wheel).extractall(packages)
    program = Path(__file__).with_name("mongo_stand_in.py")
    (packages / "server.py").write_text(program.read_text())
    serve = f'cd /srv/mongo && exec "$0" server.py {MONGO_PORT} > log 2>&1'
    await database.popen(["sh", "-c", serve, sys.executable], user="root")
    log = packages / "log"
    await until(lambda: log.exists() and "listening" in log.read_text(), "the server listens")
    done = await bed.laptop_run(
        "shoal sweep train.py mine --requirements pinned.txt --grid lr=0.1,0.2 -o mongo "
        f"-- -m {database.address}:{MONGO_PORT}:lab with epochs=2"
    )
    assert done.code == 0, done.stdout + done.stderr
    commands = [json.loads(line) for line in log.read_text().splitlines()]
    inserted = [
        document
        for command in commands
        if command.get("insert") == "runs" and command["$db"] == "lab"
        for document in command["documents"]
    ]
    sweep = json.loads((home(bed) / "mongo" / "sweep.json").read_text())["id"]
    assert {d["_id"]: d["config"]["lr"] for d in inserted} == {
        f"{sweep}-1": 0.1,
        f"{sweep}-2": 0.2,
    }
    assert (home(bed) / "mongo" / "sacred" / f"{sweep}-1" / "config.json").exists()


async def test_a_hydra_app_gets_overrides(bed: JobBed) -> None:
    assert bed.index is not None
    await write_file(bed.laptop, "app/conf/config.yaml", "model: {width: 1}\nheight: 2\n")
    await write_file(bed.laptop, "app/app.py", HYDRA)
    await write_file(bed.laptop, "app/requirements.txt", requirements(bed.index, "hydra-core"))
    done = await bed.laptop_run(
        "shoal sweep app.py mine --grid model.width=2,3 --requirements requirements.txt -o out",
        cwd="app",
    )
    assert done.code == 0, done.stdout + done.stderr
    shown = await bed.laptop_run("shoal sweep show out --json", cwd="app")
    assert {r["metrics"]["area"] for r in json.loads(shown.stdout)} == {4, 6}
    overrides = home(bed, "app") / "out" / "runs" / "0001" / "files" / ".hydra" / "overrides.yaml"
    assert "model.width=2" in overrides.read_text()


def home(bed: JobBed, directory: str = "code") -> Path:
    return bed.laptop.root() / "home/me" / directory


async def results_of(bed: JobBed, name: str) -> list[dict[str, Any]]:
    shown = await bed.laptop_run(f"shoal sweep show {name} --json")
    results: list[dict[str, Any]] = json.loads(shown.stdout)
    return results
