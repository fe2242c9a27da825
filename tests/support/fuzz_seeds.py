"""Real texts to begin with, and ways to damage them that know what breaks parsers.

The texts are those that the tests hold already: the literals of their modules, the machines, and
lines of every child of ours.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from raw_texts import loader_cache

HERE = Path(__file__).parent.parent
_MODULES = ("test_probe_*.py", "test_raw_*.py", "raw_*.py", "test_specifiers.py", "test_elf.py")
_SHORTEST, _LONGEST = 12, 20_000

LINES: dict[str, list[dict[str, Any]]] = {
    "nvml": [
        {"kind": "loaded", "path": "/usr/lib/libnvidia-ml.so.580.95.05"},
        {"kind": "calling", "call": "nvmlInitWithFlags"},
        {"kind": "system", "name": "version", "value": "13.580.95.05"},
        {"kind": "init", "call": "nvmlInitWithFlags", "code": 0, "message": ""},
        {"kind": "system", "name": "driver", "value": "580.95.05"},
        {"kind": "system", "name": "cuda", "value": 13000},
        {"kind": "system", "name": "count", "value": 2},
        {"kind": "gpu", "index": 0, "field": "handle", "code": 0, "words": ""},
        {"kind": "gpu", "index": 0, "field": "name", "value": "NVIDIA GeForce RTX 4090"},
        {"kind": "gpu", "index": 0, "field": "pci", "value": {"bus": "00000000:01:00.0", "id": 1}},
        {"kind": "gpu", "index": 0, "field": "capability", "value": [8, 9]},
        {
            "kind": "gpu",
            "index": 0,
            "field": "memory",
            "value": {"total": 1 << 34, "used": 1 << 30, "reserved": None},
        },
        {"kind": "gpu", "index": 0, "field": "mig", "value": [1, 1]},
        {"kind": "gpu", "index": 0, "field": "remap", "value": [0, 0, 0, 0]},
        {"kind": "gpu", "index": 0, "field": "nvlinks", "value": [1, 0]},
        {"kind": "gpu", "index": 0, "field": "ecc", "code": 3},
        {
            "kind": "gpu",
            "index": 0,
            "field": "processes",
            "value": [{"pid": 7, "name": "python", "memory": None}],
        },
        {"kind": "gpu", "index": 0, "field": "mig_devices", "value": ["MIG-1"]},
        {"kind": "gpu", "index": 1, "field": "handle", "code": 0, "words": ""},
        {"kind": "pair", "first": 0, "second": 1, "read": 0, "write": 4, "level": 30, "nvlink": 0},
        {"kind": "all-pairs"},
        {"kind": "done"},
    ],
    "cuda": [
        {"kind": "loaded", "path": "/usr/lib/libcuda.so.580.95.05"},
        {"kind": "value", "name": "code", "value": 0},
        {"kind": "value", "name": "version", "value": 13000},
        {"kind": "value", "name": "count", "value": 1},
        {"kind": "not-loaded", "why": "libcuda.so.1: cannot open shared object file"},
        {"kind": "node", "path": "/dev/nvidiactl", "errno": 13},
        {"kind": "calling", "call": "cuInit"},
    ],
    "look": [
        {
            "kind": "python",
            "executable": "/work/.venv/bin/python",
            "version": "3.11.7",
            "implementation": "cpython",
            "free_threaded": False,
            "bits": 64,
            "prefix": "/work/.venv",
            "base_prefix": "/usr",
            "site_packages": "/work/.venv/lib/python3.11/site-packages",
            "user_site": "",
            "pyvenv": "home = /usr/bin\nuv = 0.8.1\nversion = 3.11.7\n",
            "conda": False,
            "conda_base": False,
            "embedded": False,
            "externally_managed": False,
            "abi": "cpython-311-x86_64-linux-gnu",
            "headers": True,
            "ensurepip": True,
            "env_free_bytes": 1 << 35,
        },
        {"kind": "path", "entries": [["/work", "cwd"], ["/site", "own"]]},
        {"kind": "conda", "folder": "/c/conda-meta", "records": ["pytorch-2.1.0-py311_cuda.json"]},
        {
            "kind": "dist",
            "name": "torch",
            "version": "2.14.1+cu130",
            "entry": "/site",
            "folder": "torch-2.14.1+cu130.dist-info",
            "installer": "pip",
            "requires": ["nvidia-cublas==13.0.0.19; platform_system == 'Linux'"],
            "texts": {},
        },
        {
            "kind": "dist",
            "name": "xformers",
            "version": "0.0.30",
            "entry": "/site",
            "folder": "xformers-0.0.30.dist-info",
            "installer": "",
            "requires": ["torch (>=2.6)"],
            "texts": {"cpp_lib.json": '{"version": {"cuda": 1208, "torch": "2.7.0+cu128"}}'},
        },
        {
            "kind": "copy",
            "path": "/site/torch",
            "entry": "/site",
            "origin": "own",
            "shape": "package",
            "dists": [{"folder": "torch-2.14.1+cu130.dist-info", "version": "2.14.1+cu130"}],
            "text": "__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\nhip = None\n",
            "lib": True,
        },
        {"kind": "leftovers", "entry": "/site", "names": ["~orch"]},
        {"kind": "pip", "entry": "/site"},
        {"kind": "end"},
    ],
    "smoke": [
        {"kind": "start", "stage": "import"},
        {"kind": "torch", "ok": True, "error": "", "seconds": 1.5, "version": "2.14.1"},
        {
            "kind": "cuda",
            "available": True,
            "count": 1,
            "error": "",
            "devices": [{"capability": "8.9"}],
        },
        {"kind": "libraries", "nccl": "2.27.7", "cudnn": "9.13.0", "cudnn_error": ""},
        {"kind": "numpy", "error": ""},
        {"kind": "companion", "name": "torchvision", "error": "RuntimeError: no nms"},
        {
            "kind": "maps",
            "paths": ["/site/torch/lib/libtorch_cuda.so", "/usr/lib/libcuda.so.580.95.05"],
            "torch": "/site/torch",
            "prefix": "/work",
            "conda": False,
        },
        {"kind": "device", "device": "cuda:0", "skipped": [[1, "it shows the screen"]]},
        {"kind": "start", "stage": "matmul", "rank": 0},
        {
            "kind": "end",
            "stage": "matmul",
            "status": "passed",
            "seconds": 0.1,
            "detail": "",
            "figures": {"error": 0.01, "digest": "ab"},
        },
        {
            "kind": "end",
            "stage": "ddp",
            "rank": 1,
            "status": "failed",
            "seconds": None,
            "detail": "CUDA Error: out of memory",
            "figures": {},
            "lost": True,
            "signal": 9,
        },
        {"kind": "broken", "error": "OSError: no space"},
    ],
}
"""What each child of ours prints, a line for each kind."""

MORE = (
    "PCI_ID=10DE:2684\nPCI_CLASS=30000\nDRIVER=nvidia\n",
    "0x00000000fb000000 0x00000000fbffffff 0x0000000000040200\n" * 6,
    "Max open files            1024                 524288               files     \n",
    "0-3,8,10-11",
    "Uid:\t1000\t1000\t1000\t1000\nCpus_allowed_list:\t0-15\n",
    "MemTotal:       65789012 kB\n",
    "max 100000\n",
    "video:x:44:ada\nrender:x:992:\n",
    "[global]\nindex-url = https://user:secret@pypi.example/simple\nextra-index-url =\n  https://x\n",
    '[tool.uv]\nindex = [{url = "https://x/simple", default = true}]\n',
    "#!/bin/sh\n# one nvcc\nexec /usr/local/cuda/bin/nvcc \"$@\"\n",
    "torch>=2.0,<3; python_version >= '3.9' and extra == 'gpu'",
    "nvidia-cudnn-cu12[all] (==9.1.0.70)",
    "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
    "nvidia/cublas/lib/libcublas.so.12,sha256=abc,104857600\ntorch/version.py,sha256=x,261\n",
    "GPU 0: NVIDIA A100 (UUID: GPU-6b2f)\n  MIG 1g.5gb Device 0: (UUID: MIG-11aa)\n",
    "ActiveState=active\nLoadState=loaded\n",
    "hf_abcdefghijklmnop https://user:secret@host/x?token=abc GPU-12ab34cd eyJhbGciOiJI.eyJzdWIi.x",
    "flags\t\t: fpu sse4_1 hypervisor\n",
    "/usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9.1.0",
    "garbage_collection_threshold:0.8,max_split_size_mb:512,expandable_segments:True",
    "0,1,GPU-6b2f,MIG-1/2/3,-1",
)  # fmt: skip


@cache
def texts() -> tuple[bytes, ...]:
    """All real texts, in an order that does not change."""
    found = dict.fromkeys(text.encode("utf-8", "surrogatepass") for text in _literals())
    found.update(dict.fromkeys(text.encode() for text in MORE))
    found.update(dict.fromkeys(as_lines(rows) for rows in LINES.values()))
    found.update(dict.fromkeys(path.read_bytes() for path in sorted(HERE.glob("machines/*.json"))))
    return tuple(found)


@cache
def binaries() -> tuple[bytes, ...]:
    """Files that are no texts: a loader's cache, a library, a Windows library's beginning."""
    elf = Path("/proc/self/exe").read_bytes()[:4096] if Path("/proc/self/exe").exists() else b""
    pe = b"MZ".ljust(0x3C, b"\0") + b"\x40\0\0\0" + b"PE\0\0" + b"\0\0\2\0".ljust(20, b"\0")
    archs = b"\0sm_75 sm_80 sm_90a compute_90\0"
    return loader_cache({"libcuda.so.1": "/usr/lib/libcuda.so.1"}), elf, pe + archs


def as_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _literals() -> list[str]:
    """The longer literals in the tests of the parsers, which are texts of real hosts."""
    found = []
    for pattern in _MODULES:
        for path in sorted(HERE.glob(pattern)):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return [text for text in found if _SHORTEST <= len(text) <= _LONGEST]


# --- damage -----------------------------------------------------------------------------------

Damage = Callable[[bytes, int, int], bytes]
"""Data damaged at a place, by a second number."""

PLANTED = (
    b"\0", b"\xff", "²".encode(), "٣".encode(), b"\xed\xa0\x80", b"\r\n", b"\x1b[31m", b"\x1d",
    b"9" * 20, b"9" * 400, b"9" * 5000, b"-1", b"1e999", b"nan", b"0x", b" " * 300, b"\t", b"\n\n",
    b"(" * 40, b'"' * 3, b"'", b"[" * 3, b"[" * 3000, b"{", b"}", b",", b";", b"=", b":", b"|",
    b"/", b"..", b"%s", b"{0}", b"{x}", b"\\",
    "\u2028".encode(), "\u0130".encode(), b"a" * 3000, b"GPU-",
)  # fmt: skip
"""What breaks parsers: digits that are none, numbers beyond every type, depths, ends of lines."""

ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 1 << 31, 1 << 63, 1 << 64, 1 << 70, -(1 << 70), 0.5, 1e308, "",
    "x", "²", "9" * 400, [], [[]], [1], ["x"], {}, {"x": 1}, {"kind": "end"}, "\ud800", "a\0b",
)  # fmt: skip


def _cut(data: bytes, at: int, _: int) -> bytes:
    return data[: at % (len(data) + 1)]


def _without(data: bytes, at: int, size: int) -> bytes:
    begin = at % (len(data) + 1)
    return data[:begin] + data[begin + size % 64 :]


def _doubled(data: bytes, at: int, size: int) -> bytes:
    begin = at % (len(data) + 1)
    piece = data[begin : begin + 1 + size % 200]
    return data[:begin] + piece * 3 + data[begin:]


def _planted(data: bytes, at: int, which: int) -> bytes:
    begin = at % (len(data) + 1)
    return data[:begin] + PLANTED[which % len(PLANTED)] + data[begin:]


def _in_place_of_number(data: bytes, at: int, which: int) -> bytes:
    """A number becomes another: most texts are read for their numbers."""
    digits = [n for n, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return _planted(data, at, which)
    begin = digits[at % len(digits)]
    end = begin
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return data[:begin] + PLANTED[which % len(PLANTED)] + data[end:]


def _flipped(data: bytes, at: int, which: int) -> bytes:
    begin = at % (len(data) or 1)
    return data[:begin] + bytes([which % 256]) + data[begin + 1 :]


def _windows(data: bytes, _: int, which: int) -> bytes:
    changed = data.replace(b"\n", b"\r\n")
    return changed.decode("utf-8", "replace").encode("utf-16") if which % 3 == 0 else changed


def shaken(data: bytes, at: int, which: int) -> bytes:
    """One value in one of the lines of JSON becomes an odd one, or its key goes."""
    lines = data.split(b"\n")
    known = [n for n, line in enumerate(lines) if line.startswith(b"{")]
    if not known:
        return _in_place_of_number(data, at, which)
    place = known[at % len(known)]
    try:
        row = json.loads(lines[place])
    except (ValueError, RecursionError):
        return _planted(data, at, which)
    lines[place] = json.dumps(_odd(row, at // len(known), which)).encode("utf-8", "replace")
    return b"\n".join(lines)


def _odd(value: Any, at: int, which: int) -> Any:
    """The value with one part made odd; the numbers select the part."""
    if isinstance(value, dict) and value:
        key = list(value)[at % len(value)]
        if which % 9 == 0:
            return {name: item for name, item in value.items() if name != key}
        return value | {key: _odd(value[key], at // len(value), which)}
    if isinstance(value, list) and value and which % 2:
        place = at % len(value)
        return [*value[:place], _odd(value[place], at // len(value), which), *value[place + 1 :]]
    return ODD[which % len(ODD)]


DAMAGES: tuple[Damage, ...] = (
    _cut, _without, _doubled, _planted, _in_place_of_number, _flipped, _windows, shaken, shaken,
)  # fmt: skip

STRETCH = 200_000


def stretched(data: bytes) -> tuple[bytes, ...]:
    """Long lines of this text: a space, a number, a word or a mark of it grows without end."""
    pieces = (b" ", b"9", b"a", b"(", b"\n", b"[", b"|", b"x y ", b"=")
    half = data[: len(data) // 2]
    grown = [half + piece * (STRETCH // len(piece)) + data[len(half) :] for piece in pieces]
    whole = data * (STRETCH // max(1, len(data)))
    return (*grown, whole, whole.replace(b"\n", b" "))
