"""All functions of NVML that the probe calls, with every error code, on 1 and 8 stand-in GPUs.

Run: python benchmarks/nvml_product.py [LIMIT_S_OF_A_HANG]
Each run is a real child with a real library; what the rules say of it is judged as in
tests/faults/test_fault_product.py. Beside the codes: garbage, missing functions, crashes and hangs.
Bars: no crash of the doctor, no hang, no false root cause.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import measuring

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from fault_fixtures import CODES, GARBAGE, Fault, all_injected, functions, product, wrong
from standin_fixtures import StandIns

KINDS = (*GARBAGE, "missing", "crash", "hang")


def main(limit_s: float) -> int:
    with tempfile.TemporaryDirectory() as folder:
        standins = StandIns(Path(folder))
        started = time.monotonic()
        runs = all_injected(standins, product())
        false = [words for fault, seen in runs if (words := wrong(fault, seen))]
        seconds = time.monotonic() - started
        others = {kind: _others(standins, kind, limit_s) for kind in KINDS}
    for words in false:
        print(words)
    measuring.saved(
        "nvml_product",
        {
            "bars": {"false_root_causes": 0, "crashes_of_the_doctor": 0},
            "functions": len(functions()),
            "codes": len(CODES),
            "gpus": [1, 8],
            "runs": len(runs),
            "seconds": round(seconds, 1),
            "false_root_causes": len(false),
            "other_faults": others,
        },
    )
    return 1 if false else 0


def _others(standins: StandIns, kind: str, limit_s: float) -> dict[str, int]:
    """How many runs with this kind of fault ended the child, and how many still named the GPU."""
    faults = [Fault(function, kind, count) for function in functions() for count in (1, 8)]
    limit = limit_s if kind == "hang" else 60.0
    seen = [look for _, look in all_injected(standins, faults, limit)]
    return {
        "runs": len(seen),
        "ended_the_child": sum(bool(look.nvml.signal or look.nvml.hung) for look in seen),
        "gpus_named": sum(bool(look.gpus and look.gpus[0].name) for look in seen),
    }


if __name__ == "__main__":
    raise SystemExit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.5))
