"""The command line: options, commands, and what stands on the terminal."""
