"""A stand-in for nvidia-smi. argv[1] is a JSON file: driver, cuda, gpus, banner, unknown, words.

It ignores SIGTERM where it hangs, as the real one does inside the driver.
"""

import json
import signal
import sys
import time
from pathlib import Path

told = json.loads(Path(sys.argv[1]).read_text())
argv = sys.argv[2:]
option = next((one for one in argv if one.startswith(("--query-gpu", "-L", "-q"))), "")


def table() -> str:
    head = f"NVIDIA-SMI {told['driver']}    Driver Version: {told['driver']}    CUDA Version: "
    if told.get("banner") == "new":
        head = f"NVIDIA-SMI {told['driver']}   KMD Version: {told['driver']}   CUDA UMD Version: "
    lines = [f"| {head}{told['cuda']} |", "|" + "=" * 40 + "|"]
    for index, gpu in enumerate(told["gpus"]):
        lines.append(f"|   {index}  {gpu['name'][:25]}    Off |   {gpu['bus']}  On |      N/A |")
        lines.append("|  0%   41C    P8    21W /  575W |   812MiB /  32607MiB |  3%   Default |")
    return "\n".join(lines)


def answers(fields: list[str]) -> str:
    for field in fields:
        if field in told.get("unknown", ()):
            sys.stdout.write(f'Field "{field}" is not a valid field to query.\n')
            sys.exit(2)
    rows = [", ".join(fields)]
    for index, gpu in enumerate(told["gpus"]):
        known = {"index": str(index), "driver_version": told["driver"], "pci.bus_id": gpu["bus"]}
        known |= {"memory.total": "32607 MiB", "memory.used": "812 MiB", "pstate": "P8"}
        known |= {"compute_mode": "Default", "name": gpu["name"], "compute_cap": gpu["capability"]}
        known |= {"uuid": f"GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd"}
        rows.append(", ".join(known.get(field, "[N/A]") for field in fields))
    return "\n".join(rows)


if told.get("hangs"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if told.get("words"):
    sys.stdout.write(told["words"] + "\n")
    sys.exit(told["code"])
if option.startswith("--query-gpu"):
    sys.stdout.write(answers(option.partition("=")[2].split(",")) + "\n")
elif option == "-L":
    for number, one in enumerate(told["gpus"]):
        sys.stdout.write(
            f"GPU {number}: {one['name']} (UUID: GPU-{number:08d}-aaaa-bbbb-cccc-dddddddddddd)"
            + "\n"
        )
else:
    sys.stdout.write(table() + "\n")
