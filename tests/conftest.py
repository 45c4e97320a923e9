"""What every test may use."""

from hypothesis import settings

# How long one example takes says more about the machine than about the code.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

pytest_plugins = ["tests.simcloud.fixtures"]
