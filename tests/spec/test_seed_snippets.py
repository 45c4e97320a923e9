"""The YAML snippets in the documents that describe what users asked for."""

from __future__ import annotations

import re
import textwrap

import pytest
import yaml

from shoal.spec import YamlText, load
from shoal.spec.schema import known_keys

from .conftest import SHARED


def _blocks(text: str) -> list[str]:
    """The YAML in reStructuredText blocks, and in Markdown fences that start with a known key."""
    directives = re.findall(r"\.\. code-block:: yaml\n((?:[ \t]+\S.*\n|[ \t]*\n)+)", text)
    fences = re.findall(r"^[ \t]*```\n(.*?)^[ \t]*```", text, re.DOTALL | re.MULTILINE)
    settings = [fence for fence in fences if fence.split(":")[0].strip() in known_keys(())]
    return [textwrap.dedent(block) for block in (*directives, *settings)]


def _completed(block: str) -> str:
    """A snippet as a whole file; node type settings become those of the head."""
    data = yaml.safe_load(block)
    if "node_config" in data:
        data = {"available_node_types": {"ray.head.default": data}}
    return yaml.safe_dump({"provider": {"type": "aws", "region": "us-west-2"}, **data})


SNIPPETS = [
    block
    for path in sorted((SHARED / "seeds").glob("*.txt"))
    for block in _blocks(path.read_text())
]

pytestmark = pytest.mark.skipif(not SNIPPETS, reason="the documents are not available")


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.split()[0])
def test_every_snippet_loads(block: str) -> None:
    assert load(YamlText("snippet.yaml", _completed(block))).spec.node_types


WHOLE_FILES = [block for block in SNIPPETS if not block.startswith("node_config")]


@pytest.mark.parametrize("block", WHOLE_FILES, ids=lambda block: block.split()[0])
def test_snippets_that_are_whole_files_load_unchanged(block: str) -> None:
    expected = "external" if "type: external" in block else "embedded"
    assert load(YamlText("snippet.yaml", block)).spec.provider.type == expected


def test_all_snippets_were_found() -> None:
    assert len(SNIPPETS) >= 11
