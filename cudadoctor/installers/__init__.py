"""Install tools: one module each for pip, uv, conda, pixi and docker, all of them in `registry`.

A tool's module writes its commands and its project file, and reads what its resolver says.
"""
