"""What every test may use."""

import signal

from hypothesis import settings

# How long one example takes says more about the machine than about the code. Every run tries the
# same examples, so that whether it passes says something of the change; `--hypothesis-profile
# explore` tries new ones.
settings.register_profile("shoal", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("shoal")

# A shell that starts the tests in the background lets them, and all that they start, ignore
# Ctrl-C, which some of them are about.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.simcloud.fixtures"]
