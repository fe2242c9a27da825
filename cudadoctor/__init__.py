"""cudadoctor: find out why PyTorch does not use your NVIDIA GPU, and fix it."""

__version__ = "0.1.0"
