"""Node containers: their images, registries and lifecycle under docker or podman."""
