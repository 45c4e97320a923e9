"""The programs of a job that run on the nodes, with the node's own Python and without Shoal."""
