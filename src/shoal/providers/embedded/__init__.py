"""The provider of instances on this machine."""
