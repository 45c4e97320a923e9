"""The library for PyTorch scripts, by AdaptDL's names."""
