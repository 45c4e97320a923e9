"""The runs of a sweep, from its options."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.jobs.sweep.space import Space, key, parse_grid, parse_random, parse_value
from shoal.jobs.sweep.sweep_spec import Run, SweepSpec


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=0.1,0.01", [0.1, 0.01]),
        ("lr=1e-3,.5,5.", [0.001, 0.5, 5.0]),
        ("seed=1..4", [1, 2, 3, 4]),
        ("seed=-1..1,7", [-1, 0, 1, 7]),
        ("x=0..1..0.25", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("x=0.1..0.3..0.1", [0.1, 0.2, 0.3]),
        ("opt=adam,sgd", ["adam", "sgd"]),
        ("amp=true,False,null", [True, False, None]),
        ("zip=007,1_000,'1'", ["007", "1_000", "1"]),
        ("layers=[64,64],[128]", [[64, 64], [128]]),
        ("path=a..b,../data", ["a..b", "../data"]),
        ("text='a,b',\"c d\"", ["a,b", "c d"]),
        ("expr=f(1,2)", ["f(1,2)"]),
        ("url=a=b", ["a=b"]),
    ],
)
def test_grid_values_have_types(text: str, values: list[object]) -> None:
    parsed = parse_grid(text)[1]
    assert parsed == values
    assert [type(v) for v in parsed] == [type(v) for v in values]


@pytest.mark.parametrize("text", ["lr", "=1", "lr=", "lr=1,,2", "n=5..1", "n=1..5..0", "n=1..1e9"])
def test_a_wrong_grid_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_grid(text)


@pytest.mark.parametrize(
    "text",
    [
        "d=normal(0,1)", "d=uniform(0)", "d=uniform(1,0)", "d=uniform(a,b)", "d=loguniform(0,1)",
        "d=randint(0,1.5)", "d=choice()", "d=uniform(0,1", "d", "d=uniform(true,2)",
    ],
)  # fmt: skip
def test_a_wrong_distribution_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_random(text)


def space(*, samples: int = 3, seed: int = 0, lr: str = "lr=0.1,0.01") -> Space:
    drawn = ("a=uniform(0,0.5)", "b=loguniform(1e-5,1e-1)", "c=randint(1,3)", "d=choice(x,y)")
    return Space(dict([parse_grid(lr)]), dict(map(parse_random, drawn)), samples, seed)


def test_every_point_of_the_grid_has_its_own_draws() -> None:
    runs = space().runs()
    assert len(runs) == 6
    assert len({run["a"] for run in runs}) == 6
    for run in runs:
        assert 0 <= run["a"] <= 0.5
        assert 1e-5 <= run["b"] <= 1e-1
        assert run["c"] in (1, 2, 3)
        assert run["d"] in ("x", "y")


def test_draws_depend_on_the_seed_only() -> None:
    assert space().runs() == space().runs()
    assert space(seed=1).runs() != space().runs()


def test_an_extended_space_keeps_the_runs_it_had() -> None:
    before = {key(run) for run in space().runs()}
    assert before < {key(run) for run in space(samples=5).runs()}
    assert before < {key(run) for run in space(lr="lr=0.1,0.01,0.001").runs()}


def test_loguniform_draws_are_even_over_magnitudes() -> None:
    drawn = Space({}, dict([parse_random("x=loguniform(1e-4,1)")]), 2000).runs()
    small = sum(math.log10(run["x"]) < -2 for run in drawn)
    assert 900 < small < 1100


def test_equal_runs_are_run_once() -> None:
    assert Space({"x": [1, 1, 2]}).runs() == [{"x": 1}, {"x": 2}]


def test_without_parameters_there_is_one_run() -> None:
    assert Space().runs() == [{}]


@pytest.mark.parametrize(
    "wrong",
    [
        Space(random=dict([parse_random("a=uniform(0,1)")])),
        Space({"a": [1]}, samples=5),
        Space({"a": [1]}, dict([parse_random("a=uniform(0,1)")]), 5),
        Space({"a": range(1000), "b": range(1000)}),
    ],
    ids=["no samples", "no distribution", "twice", "too many"],
)
def test_a_space_that_makes_no_sense_is_refused(wrong: Space) -> None:
    with pytest.raises(ConfigError):
        wrong.runs()


@given(st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_values_are_read_as_they_are_written(value: object) -> None:
    text = repr(value) if isinstance(value, float) else str(value)
    assert parse_value(text) == value


def test_added_runs_get_new_numbers() -> None:
    spec = SweepSpec("s", "t.py").with_params([{"x": 1}, {"x": 2}])
    longer = spec.with_params([{"x": 3}, {"x": 2}])
    assert longer.runs == (Run(1, {"x": 1}), Run(2, {"x": 2}), Run(3, {"x": 3}))
    assert SweepSpec.from_json(longer.to_json()) == longer
