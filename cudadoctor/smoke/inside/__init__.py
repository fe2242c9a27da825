"""What runs in the examined interpreter: the standard library and torch, Python 3.6 or newer.

`wire.BOOT` starts it under a name of its own, so that this folder never stands on sys.path: the
child sees exactly the path that a program of the user sees. `entry` begins: a training step
(`conduct`, `looks`, `stages`) or the bench's runners (`serving` to `workloads`).
"""
