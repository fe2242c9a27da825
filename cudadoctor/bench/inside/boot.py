"""The few lines that `python -c` runs: a package by its folder, without touching sys.path."""

BOOT = """\
import sys
home = type(sys)("cudadoctor_bench")
home.__path__ = [sys.argv[1]]
sys.modules["cudadoctor_bench"] = home
from cudadoctor_bench import entry
entry.main(sys.argv[2:])
"""
