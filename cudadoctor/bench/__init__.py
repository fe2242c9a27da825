"""Measure on this machine what the known techniques of faster training are worth."""
