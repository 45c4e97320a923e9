"""A cloud on one machine: hosts in namespaces, and the services that create and end them.

Import from the modules (`from tests.simcloud.cloud import SimCloud`). This file stays empty of
imports because every simulated machine starts through it, and its start is on the clock.
"""
