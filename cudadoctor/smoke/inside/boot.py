"""The few lines that `python -c` runs: a package by its folder, never the current one."""

# Only sys is imported before that: with -c, Python looks into the current folder first.
BOOT = """\
import sys
sys.path[:] = [one for one in sys.path if one]
home = type(sys)("cudadoctor_smoke")
home.__path__ = [sys.argv[1]]
sys.modules["cudadoctor_smoke"] = home
from cudadoctor_smoke import entry
entry.main(sys.argv[2:])
"""
