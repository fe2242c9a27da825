"""Findings -> one plan; the remedies that rules prescribe lie below."""
