from tests.cli.conftest import module_home

__all__ = ["module_home"]
