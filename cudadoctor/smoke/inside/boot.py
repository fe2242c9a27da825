"""The few lines that `python -c` runs: a package by its folder, without touching sys.path."""

# Only sys is imported here: a json.py beside the user's program must hit torch, not this.
BOOT = """\
import sys
home = type(sys)("cudadoctor_smoke")
home.__path__ = [sys.argv[1]]
sys.modules["cudadoctor_smoke"] = home
from cudadoctor_smoke import entry
entry.main(sys.argv[2:])
"""
