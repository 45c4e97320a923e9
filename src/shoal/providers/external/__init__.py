"""Node provider classes of other people: an adapter from Ray's `NodeProvider` API to Shoal's."""
