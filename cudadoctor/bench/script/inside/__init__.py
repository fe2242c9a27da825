"""What samples a training, in a light process of its own: the standard library and pynvml."""
