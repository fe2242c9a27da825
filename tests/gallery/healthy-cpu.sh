#!/bin/sh
# cudadoctor 0.0.0, knowledge base of 2026-01-01
# python: /home/ada/venv/bin/python
#

# There is nothing to fix.
