"""Failures whose cause is known."""

from shoal.jobs.known_failures import known_failure


def test_the_missing_pkg_resources_of_sacred_has_a_fix() -> None:
    output = (
        'File "sacred/dependencies.py", line 1\n'
        "ModuleNotFoundError: No module named 'pkg_resources'\n"
    )
    known = known_failure(output)
    assert known is not None
    assert known.fix.endswith(": setuptools<81")


def test_other_failures_are_the_users() -> None:
    assert known_failure("ModuleNotFoundError: No module named 'pkg_resources'") is None
    assert known_failure("ValueError: sacred") is None
