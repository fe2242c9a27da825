"""A stand-in for nvidia-smi. argv[1] is a JSON file: driver, cuda, gpus, banner, unknown, words.

It ignores SIGTERM where it hangs, as the real one does inside the driver.
"""

import json
import signal
import sys
import time
from pathlib import Path

answer = json.loads(Path(sys.argv[1]).read_text())
argv = sys.argv[2:]
option = next((word for word in argv if word.startswith(("--query-gpu", "-L", "-q"))), "")


def table() -> str:
    head = f"NVIDIA-SMI {answer['driver']}    Driver Version: {answer['driver']}    CUDA Version: "
    if answer.get("banner") == "new":
        head = (
            f"NVIDIA-SMI {answer['driver']}   KMD Version: {answer['driver']}   CUDA UMD Version: "
        )
    lines = [f"| {head}{answer['cuda']} |", "|" + "=" * 40 + "|"]
    for index, gpu in enumerate(answer["gpus"]):
        lines.append(f"|   {index}  {gpu['name'][:25]}    Off |   {gpu['bus']}  On |      N/A |")
        lines.append("|  0%   41C    P8    21W /  575W |   812MiB /  32607MiB |  3%   Default |")
    return "\n".join(lines)


def answers(fields: list[str]) -> str:
    for field in fields:
        if field in answer.get("unknown", ()):
            sys.stdout.write(f'Field "{field}" is not a valid field to query.\n')
            sys.exit(2)
    rows = [", ".join(fields)]
    for index, gpu in enumerate(answer["gpus"]):
        known = {"index": str(index), "driver_version": answer["driver"], "pci.bus_id": gpu["bus"]}
        known |= {"memory.total": "32607 MiB", "memory.used": "812 MiB", "pstate": "P8"}
        known |= {"compute_mode": "Default", "name": gpu["name"], "compute_cap": gpu["capability"]}
        known |= {"uuid": f"GPU-{index:08d}-aaaa-bbbb-cccc-dddddddddddd"}
        rows.append(", ".join(known.get(field, "[N/A]") for field in fields))
    return "\n".join(rows)


if answer.get("hangs"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if answer.get("words"):
    sys.stdout.write(answer["words"] + "\n")
    sys.exit(answer["code"])
if option.startswith("--query-gpu"):
    sys.stdout.write(answers(option.partition("=")[2].split(",")) + "\n")
elif option == "-L":
    for number, gpu in enumerate(answer["gpus"]):
        sys.stdout.write(
            f"GPU {number}: {gpu['name']} (UUID: GPU-{number:08d}-aaaa-bbbb-cccc-dddddddddddd)"
            + "\n"
        )
else:
    sys.stdout.write(table() + "\n")
