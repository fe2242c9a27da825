"""Open device nodes, which can block inside the driver. argv: their paths, in order.

Prints a line before each opening and one with its errno after it.
"""

import json
import os
import sys


def say(kind, **rest):
    line = dict(kind=kind)
    line.update(rest)
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def opened(path):
    try:
        os.close(os.open(path, os.O_RDWR | getattr(os, "O_NONBLOCK", 0)))
    except OSError as error:
        return error.errno
    return 0


for path in sys.argv[1:]:
    say("calling", call="open " + path)
    say("node", path=path, errno=opened(path))
os._exit(0)
