"""Measure on this machine what the known techniques of faster training are worth.

The doctor's process drives: `search` says what to measure, `heats` lets processes of the examined
interpreter take turns (`stable` holds them), `judging` makes gains of their rounds.

The tests have no GPU: what only a GPU runs is not exercised by them.
"""
