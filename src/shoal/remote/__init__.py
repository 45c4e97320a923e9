"""Runs commands and copies files on a host: over SSH, in a container, or on this machine."""
