"""What runs in the examined interpreter: the standard library and torch, Python 3.8 or newer.

It is started by `boot.BOOT` under a name of its own, so that this folder never stands on sys.path.
"""
