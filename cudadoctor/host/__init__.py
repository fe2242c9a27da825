"""The only door to the outside: files, folders and programs, each with a deadline."""
