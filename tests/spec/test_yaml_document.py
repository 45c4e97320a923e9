"""Parsing YAML: lines, limits, aliases, and text that is not a cluster file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.spec import YamlText, load
from shoal.spec.yaml_document import VALUE_LIMIT

from .conftest import error_line, loaded, problems


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"- a\n- b\n", "must be a mapping of settings, not a list"),
        (b"hello", "must be a mapping of settings, not plain text"),
        (b"a: &loop [1, *loop]", ":1  alias *loop contains itself"),
        (b"a: &x 1\nb: &x 2", ":2  anchor &x is defined twice"),
        (b"a: *nowhere", ":1  alias *nowhere has no anchor"),
        (b"a:\n\tb: 1", ":2  is indented with a tab"),
        (b"a: {", "is not valid YAML"),
        (b"a: \x01", ":1  is not valid YAML"),
        (b"a: 1\n---\nb: 2\n", ":2  a second document starts here"),
        (b"a: !!python/object/apply:os.system [ls]", "!!python/object/apply:os.system is not"),
        (b"a: !mine 1", "the tag !mine is not allowed"),
        (b"a: !!int no", "'no' is not a value of type int"),
        (b"a: " + b"9" * 5000, "is not a value of type int"),
        (b"? [a, b]\n: c", "a key must be a string"),
        (b"<<: 3", "<< must refer to a mapping"),
        (b"[" * 20_000, "is nested more than"),
        (b"- a\n" * (VALUE_LIMIT + 1), "has more than 50,000 values"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_text_that_is_not_a_cluster_file_is_one_error_line(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)
    assert expected in error_line(path)


def test_alias_expansion_is_limited() -> None:
    rows = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for above, name in zip("abcdefgh", "bcdefghi", strict=True):
        rows.append(f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]")
    assert problems("\n".join(rows)) == [
        "cluster.yaml  has more than 50,000 values, with aliases expanded"
    ]


def test_merge_key_expansion_is_limited() -> None:
    rows = ["a: &a {x: 1}"]
    for above, name in zip("abcdefgh", "bcdefghi", strict=True):
        rows.append(f"{name}: &{name} {{<<: [{', '.join([f'*{above}'] * 9)}]}}")
    assert "has more than" in problems("\n".join(rows))[0]


def test_merge_keys_are_expanded_and_own_keys_take_precedence() -> None:
    spec = loaded(
        """
        provider: {type: aws, region: us-west-2}
        available_node_types:
          ray.head.default: &base
            node_config: {InstanceType: m5.large}
            labels: {tier: one}
          worker:
            <<: *base
            labels: {tier: two}
        """
    ).spec
    assert spec.node_types["worker"].node_config == {"InstanceType": "m5.large"}
    assert spec.node_types["worker"].labels == {"tier": "two"}
    assert spec.head.labels == {"tier": "one"}


def test_keys_and_dates_are_strings() -> None:
    spec = loaded("provider: {type: aws, 1: a, on: b, day: 2024-01-01}").spec
    assert spec.provider.settings == {"1": "a", "on": "b", "day": "2024-01-01"}


_KEYS = st.sampled_from(
    [
        *(
            "cluster_name",
            "provider",
            "type",
            "auth",
            "docker",
            "available_node_types",
            "resources",
        ),
        *("min_workers", "max_workers", "head_node_type", "worker_nodes", "head_node", "image"),
        *("node_config", "setup_commands", "file_mounts", "worker_ips", "head_ip", "shoal", "<<"),
        *("worker_default_node_type", "initial_workers", "labels", "ray.head.default", "x y"),
    ]
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["aws", "gcp", "local", "embedded", "external", "a.B", "MAX_IPS", "..."]),
)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_KEYS | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def _loads_or_raises_config_error(text: str) -> None:
    try:
        load(YamlText("cluster.yaml", text))
    except ConfigError as error:
        assert str(error)


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text(alphabet="a:- \n[]{}&*!<|>'\"#?%@\t,1.~"))
def test_any_text_loads_or_is_a_config_error(text: str) -> None:
    _loads_or_raises_config_error(text)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(_KEYS, _TREES, max_size=6))
def test_any_data_loads_or_is_a_config_error(data: dict[str, object]) -> None:
    _loads_or_raises_config_error(yaml.safe_dump(data))


def test_the_last_value_of_a_duplicate_key_counts_with_a_warning() -> None:
    result = loaded(
        """\
        provider: {type: aws, region: us-west-2}
        auth:
          ssh_user: first
          ssh_user: second
        auth: {ssh_user: third}
        """
    )
    assert result.spec.auth.ssh_user == "third"
    assert [str(warning) for warning in result.warnings] == [
        "cluster.yaml:5  auth is a duplicate key: this value replaces the one in line 2"
    ]


def test_a_duplicate_key_inside_a_section_is_named_with_its_path() -> None:
    result = loaded("provider: {type: aws}\nauth:\n  ssh_user: a\n  ssh_user: b")
    assert result.spec.auth.ssh_user == "b"
    assert [str(warning) for warning in result.warnings] == [
        "cluster.yaml:4  auth.ssh_user is a duplicate key: this value replaces the one in line 3"
    ]
