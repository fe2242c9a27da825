"""Causes that only a pasted report shows: what a program said of itself."""
