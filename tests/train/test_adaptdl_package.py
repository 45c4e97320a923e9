"""The distribution `shoal-adaptdl`: AdaptDL's names, provided by Shoal."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.train.adaptdl_package import adaptdl_package

pytestmark = pytest.mark.processes

# What scripts import, and where it comes from.
NAMES = {
    "env": "checkpoint_path share_path job_id master_addr master_port replica_rank num_nodes "
    "num_replicas num_restarts adaptdl_sched_version supervisor_url from_ray",
    "checkpoint": "State save_all_states save_state load_state",
    "collective": "initialize allreduce allreduce_async broadcast",
    "goodput": "PerfParams GradParams GoodputFunction fit_perf_params",
    "reducer": "Reducer",
    "sched_hints": "SCHED_HINTS PERF_PARAMS post_sched_hints",
    "utils": "print_exc",
    "torch": "init_process_group AdaptiveDataParallel AdaptiveDataLoader ElasticSampler "
    "Accumulator current_epoch finished_epochs remaining_epochs_until current_dataloader "
    "version_check",
    "torch.parallel": "AdaptiveDataParallel",
    "torch.data": "ElasticSampler AdaptiveDataLoader AdaptiveDataLoaderMixin "
    "AdaptiveDataLoaderHelper current_dataloader",
    "torch.iterator": "AdaptiveBPTTIterator",
    "torch.epoch": "current_epoch finished_epochs remaining_epochs_until",
    "torch.accumulator": "Accumulator",
    "torch.scaling_rules": "ScalingRuleBase AdaScale AdamScale LinearScale SqrtScale LEGWScale",
    "torch.gradient_noise_scale": "GradientNoiseScale AdamGradientNoiseScale",
    "torch._metrics": "_metrics_state profile_step_start profile_sync_time profile_step_commit "
    "update_grad_params update_progress get_progress set_batch_size get_goodput_fn "
    "_fit_perf_params",
}


@pytest.mark.parametrize("module", NAMES)
def test_the_names_that_scripts_import_are_there(module: str) -> None:
    provided = importlib.import_module(f"adaptdl.{module}")
    missing = [name for name in NAMES[module].split() if not hasattr(provided, name)]
    assert not missing


def _run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_importing_the_torch_module_makes_the_others_reachable() -> None:
    program = (
        "import adaptdl.torch\n"
        "adaptdl.env.num_replicas, adaptdl.checkpoint.State, adaptdl.collective.allreduce\n"
        "adaptdl.goodput.PerfParams, adaptdl.torch._metrics.get_progress\n"
        "adaptdl.torch.scaling_rules.AdaScale, adaptdl.torch.parallel, adaptdl.torch.data\n"
    )
    result = _run(program)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_exit_flag_is_set_by_a_signal() -> None:
    program = (
        "import os, signal\n"
        "from adaptdl._signal import get_exit_flag\n"
        "print(get_exit_flag())\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(get_exit_flag())\n"
    )
    assert _run(program).stdout.split() == ["False", "True"]


def test_it_wins_over_an_installed_adaptdl_and_says_so(tmp_path: Path) -> None:
    package, metadata = tmp_path / "adaptdl", tmp_path / "adaptdl-0.4.3.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: adaptdl\nVersion: 0.4.3\n")
    ours = adaptdl_package()
    assert ours is not None
    result = _run("import adaptdl.utils", PYTHONPATH=f"{ours.parent}{os.pathsep}{tmp_path}")
    assert result.returncode == 0
    assert result.stderr.count("the installed adaptdl 0.4.3 is not used") == 1
    other = _run(
        "import adaptdl.utils",
        PYTHONPATH=f"{ours.parent}{os.pathsep}{tmp_path}",
        ADAPTDL_REPLICA_RANK="1",
    )
    assert (other.returncode, other.stderr) == (0, "")


def test_both_distributions_have_the_same_version() -> None:
    assert importlib.metadata.version("shoal-adaptdl") == shoal.__version__
    requirements = importlib.metadata.requires("shoal-adaptdl") or []
    assert f"shoal[train]=={shoal.__version__}" in requirements


def test_the_package_is_found_where_it_is_installed() -> None:
    package = adaptdl_package()
    assert package is not None
    assert (package / "torch" / "parallel.py").is_file()


REDUCING = """
import sys
from adaptdl.reducer import Reducer

rank, port = int(sys.argv[1]), int(sys.argv[2])
reducer = Reducer(rank, 3, "127.0.0.1", port)
for _ in range(3):
    union = reducer.allreduce_async({rank}, lambda a, b: a | b)
    ordered = reducer.allreduce_async([rank], lambda a, b: a + b)
    print(ordered.result(), union.result(), ordered.result())
print(reducer.broadcast(f"from {rank}"))
"""


def test_a_reducer_combines_and_broadcasts_and_answers_in_any_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REDUCING, str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    expected = "[0, 1, 2] {0, 1, 2} [0, 1, 2]\n" * 3 + "from 0\n"
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert (output, process.returncode) == (expected, 0), errors


def test_exceptions_are_printed_and_raised(capsys: pytest.CaptureFixture[str]) -> None:
    from adaptdl.utils import print_exc

    @print_exc
    def fails() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError):
        fails()
    assert "KeyError: 'lost'" in capsys.readouterr().err


def test_scheduling_hints_are_checked() -> None:
    from adaptdl.sched_hints import SCHED_HINTS, post_sched_hints

    post_sched_hints({**SCHED_HINTS, "maxBatchSize": 1280}, "job")
    with pytest.raises(ValueError, match="unknown scheduling hints: size"):
        post_sched_hints({"size": 1})


def test_backward_outside_of_a_loader_is_refused() -> None:
    program = (
        "import torch, adaptdl.torch\n"
        "adaptdl.torch.init_process_group('gloo')\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model = adaptdl.torch.AdaptiveDataParallel(model, optimizer)\n"
        "output = model(torch.ones(1, 2))\n"
        "try:\n"
        "    output.sum().backward()\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert "outside of a loop over an AdaptiveDataLoader" in _run(program).stdout
