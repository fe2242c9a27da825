"""Files of the system that are missing, empty, unreadable, binary or huge: gaps, and nothing false.

Each machine is whole but for these files, and every probe looks at it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
from raw_checks import standing
from raw_hosts import RawHost, healthy
from standin_fixtures import StandIns

from cudadoctor import knowledge
from cudadoctor.host.local import Answer, Listing
from cudadoctor.model import factfile
from cudadoctor.model.findings import Diagnosis
from cudadoctor.rules.diagnose import diagnose

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are made for Linux"),
    pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler"),
]

Damage = Callable[[bytes], Answer]

DAMAGES: dict[str, Damage] = {
    "missing": lambda _: Answer(missing=True),
    "empty": lambda _: Answer(data=b""),
    "forbidden": lambda _: Answer(why="EACCES: Permission denied"),
    "broken": lambda _: Answer(why="EIO: Input/output error"),
    "binary": lambda _: Answer(data=bytes(range(256)) * 16),
    "zeros": lambda _: Answer(data=bytes(4096)),
    "one long line": lambda _: Answer(data=b"9" * (1 << 20)),
    "many lines": lambda _: Answer(data=b"a b: 1 = 2 / 3\t4\n" * 60_000),
    "cut in half": lambda data: Answer(data=data[: len(data) // 2]),
    "said twice": lambda data: Answer(data=data * 2),
    "without newlines": lambda data: Answer(data=data.replace(b"\n", b"")),
}
LISTINGS = (
    Listing(missing=True),
    Listing(why="EACCES: Permission denied"),
    Listing(names=()),
    Listing(names=("\udcff", "..", "a\nb", "x" * 255)),
    Listing(names=tuple(f"{n:x}" for n in range(5000))),
)
STARTS = ("/proc/", "/sys/", "/etc/", "/")
SYSTEM = ("/proc/", "/sys/")


def well(standins: StandIns, python: str) -> RawHost:
    return healthy(standins, python)


def unloaded(standins: StandIns, python: str) -> RawHost:
    return healthy(standins, python).unloaded()


HOSTS = {"well": well, "unloaded": unloaded}
ALLOWED = {"well": set[str](), "unloaded": {"driver-not-loaded"}}


def judged(host: RawHost) -> Diagnosis:
    """The diagnosis; every probe came to its end, and its facts can be written down."""
    machine = host.machine()
    assert not [gap for gap in machine.gaps if "probe" in gap.why and "failed" in gap.why]
    assert factfile.dumps(machine)
    return diagnose(machine, knowledge.load())


def damaged(host: RawHost, path: str, how: str) -> None:
    was = host.told.files[path]
    data = was.data if isinstance(was, Answer) else was.encode() if isinstance(was, str) else was
    host.told.files[path] = DAMAGES[how](data)


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("turn", [0, 1])
def test_one_damaged_file_misleads_nobody(
    standins: StandIns, python_cu130: str, kind: str, turn: int
) -> None:
    """Each kernel file is damaged in one or two ways; the other turn takes other ways."""
    names = list(DAMAGES)
    runs = 0
    for number, path in enumerate(sorted(HOSTS[kind](standins, python_cu130).told.files)):
        for how in names[(number + 4 * turn) % 8 :: 8]:
            host = HOSTS[kind](standins, python_cu130)
            damaged(host, path, how)
            causes = set(standing(judged(host)))
            assert causes <= ALLOWED[kind], (path, how, causes)
            runs += 1
    assert runs > 30
    sys.stdout.write(f"{runs} runs of all probes\n")


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("how", DAMAGES)
def test_whole_trees_of_damaged_files_mislead_nobody(
    standins: StandIns, python_cu130: str, kind: str, how: str
) -> None:
    for start in STARTS:
        host = HOSTS[kind](standins, python_cu130)
        for path in host.told.files:
            if path.startswith(start):
                damaged(host, path, how)
        causes = set(standing(judged(host)))
        # Without /proc nothing says whether the module is loaded; only CUDA's answer is left.
        assert causes <= ALLOWED[kind] | {"unknown"}, (start, how, causes)


@pytest.mark.parametrize("listing", LISTINGS, ids=["missing", "forbidden", "empty", "odd", "huge"])
def test_folders_of_all_kinds_mislead_nobody(
    standins: StandIns, python_cu130: str, listing: Listing
) -> None:
    files = healthy(standins, python_cu130).told.files
    parents = {path.rsplit("/", deep)[0] for path in files for deep in (1, 2, 3)} - {""}
    for folder in sorted(parents):
        host = healthy(standins, python_cu130)
        host.told.folders[folder] = listing
        assert standing(judged(host)) == [], folder


@pytest.mark.parametrize(
    "words", [["check", "--fast", "--json"], ["check", "--fast"], ["facts", "--full"]]
)
def test_variables_that_are_no_text_are_shown_as_escapes(words: list[str]) -> None:
    odd = {b"CUDA_HOME": b"/tmp/\xfe", b"CUDA_VISIBLE_DEVICES": b"\xfd", b"LC_ALL": b"C"}
    ran = subprocess.run(
        [sys.executable, "-m", "cudadoctor", *words, "--python", sys.executable],
        env={**os.environb, **odd},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode in (0, 1, 3), ran.stderr.decode("utf-8", "replace")
    assert b"itself failed" not in ran.stderr
    assert ran.stdout.isascii()
    if words != ["check", "--fast"]:
        document = json.loads(ran.stdout)
        assert document.get("facts", document)["env"]["CUDA_HOME"] == "/tmp/\\udcfe"
