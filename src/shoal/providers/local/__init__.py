"""The provider of hosts that a cluster file lists."""
