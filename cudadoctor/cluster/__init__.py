"""Many machines of one job: what differs between them, and whether they work together.

differences judges facts, page shows it; command gathers them (from files, or from the ranks of a
launched job), inside/rank.py is what runs on every rank.
"""
