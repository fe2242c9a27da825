"""The few lines that `python -c` runs: a package by its folder, never the current one."""

BOOT = """\
import sys
sys.path[:] = [one for one in sys.path if one]
home = type(sys)("cudadoctor_bench")
home.__path__ = [sys.argv[1]]
sys.modules["cudadoctor_bench"] = home
from cudadoctor_bench import entry
entry.main(sys.argv[2:])
"""
