"""How the workers of a script change, from what its source calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.train.job.job_spec import AUTO, IN_PLACE, RESTART
from shoal.train.job.script_kind import rescale_mode


def _mode(directory: Path, source: str, **modules: str) -> str:
    (directory / "code.py").write_text(source)
    for name, text in modules.items():
        (directory / f"{name}.py").write_text(text)
    return rescale_mode(directory, "code.py")


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        ("import adaptdl.torch", IN_PLACE),
        ("from shoal.train.torch import AdaptiveDataLoader", IN_PLACE),
        ("import shoal.train as st\nst.init()", IN_PLACE),
        ("from shoal.train import prepare", IN_PLACE),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", RESTART),
        ("import os\nrank = int(os.environ['LOCAL_RANK'])", RESTART),
        ("from transformers import Trainer", RESTART),
        ("from transformers import AutoTokenizer", AUTO),
        ("from accelerate import Accelerator", RESTART),
        ("import lightning as L", RESTART),
        ("import shoal.train as st\nfrom transformers import Trainer\nst.save('x')", RESTART),
        ("import torch", AUTO),
        ("def broken(:", AUTO),
    ],
)
def test_the_calls_of_a_script_decide(tmp_path: Path, source: str, mode: str) -> None:
    assert _mode(tmp_path, source) == mode


def test_modules_beside_the_script_count(tmp_path: Path) -> None:
    assert _mode(tmp_path, "import model", model="import adaptdl.torch") == IN_PLACE


def test_modules_that_are_not_imported_do_not_count(tmp_path: Path) -> None:
    assert _mode(tmp_path, "import json", other="import adaptdl") == AUTO


def test_modules_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    assert _mode(tmp_path, "import a", a="import b", b="import a\nimport code") == AUTO
