"""Facts -> findings: one cause, one function; registry.py joins them."""
