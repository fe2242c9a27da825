"""Brings the tables up to date: reads the package index and public tables, shows what differs.

    cudadoctor update                                renews them in the data folder of a user

    python -m cudadoctor.knowledge.update            shows the difference, changes nothing
    python -m cudadoctor.knowledge.update --write    writes it into the tables of this package
    python -m cudadoctor.knowledge.update --check    only: is the newest torch in the tables

Both fronts ask the same places. Each row that changes names its source, with the day. What no place
says stays unknown: a new torch whose code list was not read is in the tables and is not
prescribed. What contradicts the tables without proof is remarked and not written.

fetching    the network: http and https, 30 s and 64 MiB a page, parts of files
index       a package index: its listings, the names of files, what lies inside a wheel
rows        the tables while they are updated: each row that is said enters them, with its source
torch_rows, public    the places, each a function of the update
places      whom to ask, in which order, and what then is not known
writing     a file in the place of another at once
"""
