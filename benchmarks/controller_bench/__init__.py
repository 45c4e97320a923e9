"""Parts of the controller benchmark: an idle cluster, and Ray's autoscaler as the peer."""
