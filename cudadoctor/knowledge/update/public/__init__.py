"""Readers of public tables: each a pure function of a page's text and the tables -> what it says.

Each raises Unreadable for a text that is not of the shape it knows, and then says nothing at all.
"""
