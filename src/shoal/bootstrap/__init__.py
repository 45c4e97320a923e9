"""The steps that make an instance a Ray node, and the pipeline that takes one node through."""
