"""`check --fast` against `python -m torch.utils.collect_env` in the same environment.

Run: python benchmarks/check_fast.py PYTHON_WITH_TORCH [ROUNDS]
Bars: --json at most 1/20 of collect_env's wall time, on a terminal at most 1/15, all processes of
`check --fast --json` together under 80 MB.
"""

from __future__ import annotations

import sys

import measuring


def main(python: str, rounds: int) -> None:
    ours = [*measuring.cudadoctor(), "check", "--fast", "--python", python]
    # script(1) gives the second one a real terminal.
    on_terminal = ["script", "-qec", " ".join(ours), "/dev/null"]
    times = measuring.alternating(
        {
            "json": [*ours, "--json"],
            "terminal": on_terminal,
            "collect_env": [python, "-m", "torch.utils.collect_env"],
        },
        rounds,
    )
    medians = {name: measuring.median(taken) for name, taken in times.items()}
    peak = max(measuring.peak_bytes([*ours, "--json"]) for _ in range(3))
    measuring.saved(
        "check_fast",
        {
            "bars": {"json": 1 / 20, "terminal": 1 / 15, "peak_mb": 80},
            "median_s": {name: round(value, 4) for name, value in medians.items()},
            "ratio_json": round(medians["json"] / medians["collect_env"], 4),
            "ratio_terminal": round(medians["terminal"] / medians["collect_env"], 4),
            "peak_mb": round(peak / 1e6, 1),
            "rounds": rounds,
        },
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 9)
