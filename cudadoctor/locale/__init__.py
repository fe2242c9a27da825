"""The languages of the reports."""
