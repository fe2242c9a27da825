"""Brings the tables up to date: reads the package index and public tables, shows what differs.

    python -m cudadoctor.knowledge.update            shows the difference, changes nothing
    python -m cudadoctor.knowledge.update --write    writes it
    python -m cudadoctor.knowledge.update --check    only: is the newest torch in the tables

What is seen becomes rows of `build/own/seen.json`, each with its source and the day, and goes into
the tables by the function that a rebuild from the collected facts ends with, so that both give the
same bytes. What no place says stays unknown: a new torch whose code list was not read is in the
tables and is not prescribed. What contradicts the tables without proof is told and not written.

fetching       the network: http and https, 30 s and 64 MiB a page, parts of files
pages, listing a package index's page -> files; wheel_names: a file's name -> what it is for
wheel_inside   METADATA, torch/version.py and code lists of a wheel that is never downloaded whole
torch_release, companion_releases, torch_index, public.*    pages -> rows, pure
rows, shown    rows -> difference -> journal, text, pure
asking         which place is asked when
"""
