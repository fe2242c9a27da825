"""Pasted text of other programs -> facts."""
