"""cudadoctor: says why PyTorch does not use the GPU, shows the evidence, prints the repair."""

__version__ = "0.1.0"
