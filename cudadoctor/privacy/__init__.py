"""Secrets and names are taken out of what is shown and shared."""
