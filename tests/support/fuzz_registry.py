"""Every parser of outside text: what reads it, and the one way in which it may refuse.

A parser gets any bytes. It returns facts that a document can hold, or raises the refusal that it
documents; anything else is a bug of it. benchmarks/fuzz_parsers.py runs the same registry.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import forged
from fuzz_host import BabblingHost
from fuzz_judged import judged, redacted, shown_of
from fuzz_parser import Parser, any_text, of_text, text_of
from fuzz_repairs import of_repairs
from packaging.version import Version

from cudadoctor import knowledge, smoke
from cudadoctor.cli import fast, saved
from cudadoctor.cli import options as cli_options
from cudadoctor.host import recording
from cudadoctor.host.children import Ran
from cudadoctor.installers import index as dialect_index
from cudadoctor.installers import requirement
from cudadoctor.knowledge import renewed, tables
from cudadoctor.locale import language
from cudadoctor.model import factfile, requirements, trust, versions
from cudadoctor.model.machine import Gpu, Identity, Machine
from cudadoctor.model.trust import foreign
from cudadoctor.privacy.conceal import Concealer
from cudadoctor.probes import (
    Looked,
    elf,
    examine,
    indexes,
    installed,
    interpreter,
    kernel,
    libcuda,
    libraries,
    limits,
    loader,
    nvml,
    pci,
    platform,
    smi,
    streamed,
    target,
    toolkit,
    torch_order,
)
from cudadoctor.reports import kernel_log
from cudadoctor.reports import reading as report_text
from cudadoctor.reports import smi as smi_text
from cudadoctor.reports.document import NotTextError
from cudadoctor.rules.process import read_visible
from cudadoctor.smoke import reading, short_bus_id

RELEASE = Version("2.14.1+cu130")
PYTHON = "/work/.venv/bin/python"


def _of_host(probe: Callable[[BabblingHost], object]) -> Callable[[bytes], object]:
    return lambda data: probe(BabblingHost(data))


def _noted(note: Callable[..., object], *more: Any, **named: Any) -> Callable[[bytes], object]:
    def noted(data: bytes) -> object:
        notes = Looked()
        note(notes, BabblingHost(data), *more, **named)
        return notes

    return noted


def _ran(data: bytes) -> Ran:
    """A child that ended in one of four ways, by the last byte."""
    text, how = text_of(data), data[-1] % 4 if data else 0
    return (
        Ran(code=0, stdout=text),
        Ran(code=-11, stdout=text, stderr=text),
        Ran(stdout=text, why="no response within 5 s", timed_out=True, seconds=5.0),
        Ran(code=1, stdout=text, stderr=text),
    )[how]


# --- parsers that need more than a text ---------------------------------------------------------


def _reader(data: bytes) -> elf.ReadAt:
    return lambda offset, size: data[offset : offset + size] if offset >= 0 else b""


def _elf(data: bytes) -> object:
    # Sections and dynamic tags lie anywhere in a file, so the reader is the data itself.
    return elf.parse(_reader(data)), elf.section(_reader(data), ".rodata")


def _nvml(data: bytes) -> object:
    said = streamed.streamed(_ran(data))
    return nvml.nvml_facts(said), libcuda.libcuda_from(said, said)


def _gpu(data: bytes) -> object:
    lines = streamed.streamed(Ran(code=0, stdout=text_of(data))).of("gpu")
    return nvml.gpu_from(0, lines)


def _nobody(_: str) -> None: ...


def _smoke(data: bytes) -> object:
    mode = "full" if len(data) % 2 else "import"
    for line in text_of(data).splitlines():
        smoke.stages_begun(_nobody)(line)
    looked = reading.read(_ran(data), mode, PYTHON)
    return looked, reading.Reading(_ran(data)).stage("matmul")


def _packages(data: bytes) -> object:
    said = installed.parse(text_of(data))
    return (installed.copies_of(said, "/work"), installed.packages(said))


def _mapped(text: str) -> object:
    found = reading.libraries(text.splitlines()[:200], "/site/torch", "/work", True)
    return found, reading.soname(text), short_bus_id(text)


def _requirement(text: str) -> object:
    asked = requirements.cut(text)
    variables = {"python_version": "3.11", "extra": "", "platform_system": "Linux"}
    if asked is not None:
        requirements.marker_holds(asked.marker, variables)
        requirements.admits(asked.specifier, RELEASE)
    requirements.marker_holds(text, variables)
    return requirements.admits(text, RELEASE), requirements.normal(text)


def _document(data: bytes) -> object:
    machine = factfile.loads(data)
    assert isinstance(machine, Machine)
    return machine


def _forged(data: bytes) -> object:
    """Every page of a document: the text itself, else one that holds the text in some field."""
    number = len(data) + sum(data[:40])
    if data.lstrip()[:1] == b"{":
        machine = factfile.loads(data)
    else:
        path, _ = forged.fields()[number % len(forged.fields())]
        base = forged.bases()[number % len(forged.bases())]
        plain = forged.planted(base, path, any_text(data)[:4096], number % 6)
        machine = factfile.from_document(plain)
    read = foreign(machine)
    assert forged.faults_of(read, number) == []
    return read


def _plain_document(data: bytes) -> object:
    try:
        plain = json.loads(text_of(data))
    except (ValueError, RecursionError):
        return None
    return factfile.from_plain(plain)


def _shebang(host: BabblingHost) -> object:
    return target.interpreter_of(host, "/usr/bin/pip"), target.behind_shim(host, "/r/shims/python")


def _package_of_torch(host: BabblingHost) -> object:
    place = "/site/torch"
    damage = installed.compare(host, "/site", "torch-2.dist-info")
    installed.compare_wheels(host, [("/site", "nvidia_cublas-13.dist-info")])
    path = installed.binding(host, place, "/work")
    return (installed.archs_of(host, path) if path else None), damage


def _chosen(host: BabblingHost) -> object:
    name = host.env["CXX"]
    return target.choose(host).executable, target.named(host, name)


def _number(text: str) -> object:
    return versions.driver_of(text), versions.version_of(text), versions.whole(text)


def _argv(text: str) -> object:
    return fast.options_of(text.split(" "))


def _secret(data: bytes) -> object:
    """What a record hides; the names are those of the machine that the text describes."""
    text = any_text(data)
    words = [*(word[:64] for word in text_of(data).split()[:3]), "", "", ""]
    identity = Identity(user=words[0] or None, home=f"/home/{words[1]}", host=words[2] or None)
    words_of = Concealer(Machine(identity=identity, gpus=(Gpu(index=0, uuid=words[0] or None),)))
    found = [words_of.output(text, source) for source in ("", "/etc/passwd", "pip.conf", "dmesg")]
    found.append(words_of.valued("env.PATH", text))
    text_with_mark = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    assert text_with_mark or len(words_of.data(data)) == len(data)
    return found


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="cudadoctor-fuzz-"))


def _report(data: bytes) -> object:
    saved.facts_in(data)
    machine = report_text.read_report(data, knowledge.load())
    failed = [gap.why for gap in machine.gaps if " failed: " in gap.why]
    assert not failed, failed
    return machine


def _judged_report(data: bytes) -> object:
    """What a report shows, judged: rules and pages meet facts that no machine would have."""
    return shown_of(report_text.read_report(data, knowledge.load()))


def _recording(data: bytes) -> object:
    """A recording whose description or whose answers are the text."""
    folder = _folder()
    about, answers = (data, b"") if data[:1] == b"{" and b'"look"' in data else (_ABOUT, data)
    (folder / "recording.json").write_bytes(about)
    for kind in ("read", "listing", "stat", "glob", "which", "space", "run", "inside"):
        (folder / f"{kind}.jsonl").write_bytes(answers)
    host = recording.ReplayHost(str(folder), strict=False)
    asked = host.read("/etc/os-release"), host.stat("/etc"), host.run("true", timeout_s=1)
    return asked[0].data, host.listing("/etc").names, host.space("/tmp"), host.glob("/x*")


_ABOUT = json.dumps(
    {"recording": 1, "system": "Linux", "folder": "/work", "look": {"depth": "fast"}, "env": {}}
).encode()


# --- the registry ---------------------------------------------------------------------------------


def _texts() -> Iterator[tuple[str, Parser]]:
    """Parsers of one text."""
    names: tuple[str, ...]
    simple: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("reports.smi.parse_smi", smi_text.parse_smi),
        ("reports.smi.cleaned", smi_text.cleaned),
        ("reports.smi.first_message", smi_text.first_message),
        ("reports.smi.unknown_field", smi_text.unknown_field),
        (
            "reports.kernel_log.parse_kernel_log",
            lambda text: kernel_log.parse_kernel_log(text, 12345.6),
        ),
        ("probes.toolkit.parse_version", toolkit.parse_version),
        ("probes.toolkit.family", toolkit.family),
        ("probes.kernel.parse_unit", kernel.parse_unit),
        ("probes.indexes.ini_section", lambda text: indexes.ini_section(text, "global")),
        ("probes.installed.assigned", lambda text: installed.build_of(installed.assigned(text))),
        ("model.versions.torch_from_tag", versions.torch_from_tag),
        ("model.versions.tagged_for", versions.tagged_for),
        ("probes.kernel.parse_proc_version", kernel.parse_proc_version),
        ("probes.libcuda.file_version", libcuda.file_version),
        ("probes.libraries.printable", libraries.printable),
        ("probes.limits.parse_limits", limits.parse_limits),
        ("probes.limits.parse_cpu_list", limits.parse_cpu_list),
        ("probes.nvml.library_version", nvml.library_version),
        ("probes.platform.parse_os_release", platform.parse_os_release),
        ("probes.platform.parse_l4t", platform.parse_l4t),
        ("probes.installed.parse", installed.parse),
        ("probes.toolkit.parse_nvcc", toolkit.parse_nvcc),
        ("probes.torch_order.parse_order", lambda text: torch_order.parse_order(text, "13.0")),
        ("cli.fast.options_of", _argv),
        ("installers.index.host_of", dialect_index.host_of),
        ("installers.requirement.name_of", requirement.name_of),
        ("rules.process.read_visible", lambda text: read_visible(text, ("GPU-1", "GPU-2"))),
        ("cli.options.device_is_sound", cli_options.device_is_sound),
        ("cli.options.cause_of", cli_options.cause_of),
        ("model.trust.is_host", trust.is_host),
    )
    for name, parse in simple:
        yield name, Parser((name,), of_text(parse))
    spoken = language.language("es").spoken
    yield "language.spoken", Parser(("language.spoken",), of_text(spoken), slow=True)
    names = (
        "model.requirements.cut",
        "model.requirements.admits",
        "model.requirements.marker_holds",
        "model.requirements.normal",
    )
    yield "requirements", Parser(names, of_text(_requirement))
    names = ("smoke.reading.libraries", "smoke.reading.soname", "smoke.short_bus_id")
    yield "smoke.mapped", Parser(names, of_text(_mapped))
    names = ("model.versions.driver_of", "model.versions.version_of", "model.versions.whole")
    yield "versions", Parser(names, of_text(_number))
    names = ("model.versions.DriverVersion",)
    yield (
        "model.versions.DriverVersion",
        Parser(names, of_text(versions.DriverVersion), (ValueError,)),
    )
    yield (
        "cli.options.seconds",
        Parser(("cli.options.seconds",), of_text(cli_options.seconds), (cli_options.WrongUse,)),
    )


_TABLES: renewed.Tables = {name: tables.packaged(name, dict) for name in renewed.TABLES}
_FILE = (
    b'{"format": 1, "cudadoctor": "0", "collected": "2099-01-01", "tables": {'
    b'"companions": {"triton": {"2.99": "==9.9"}}, '
    b'"torch": {"releases": [{"torch": "9.9.9", "released": "2099-01-01", '
)


def _renewed(data: bytes) -> None:
    """A file as a whole, and one whose end the data replaces."""
    for text in (data, _FILE + data):
        renewed.sign(text, _TABLES)


def _data() -> Iterator[tuple[str, Parser]]:
    """Parsers of bytes, of JSON lines and of whole documents."""
    names: tuple[str, ...]
    yield "elf", Parser(("probes.elf.parse", "probes.elf.section"), _elf)
    yield "probes.loader.parse_cache", Parser(("probes.loader.parse_cache",), loader.parse_cache)
    binary = ("probes.installed.flags_in", "probes.installed.pe_section")
    yield (
        "probes.installed.binary",
        Parser(
            binary, lambda data: (installed.flags_in(data), installed.pe_section(data, b".rdata"))
        ),
    )
    yield "probes.kernel.parse_dpkg", Parser(("probes.kernel.parse_dpkg",), kernel.parse_dpkg)
    yield (
        "probes.installed.expected_sizes",
        Parser(
            ("probes.installed.expected_sizes",), lambda data: tuple(installed.expected_sizes(data))
        ),
    )
    names = ("probes.streamed.streamed", "probes.nvml.nvml_facts", "probes.nvml.pair_from")
    names = (*names, "probes.libcuda.libcuda_from")
    yield "probes.nvml", Parser(names, _nvml)
    yield "probes.nvml.gpu_from", Parser(("probes.nvml.gpu_from",), _gpu)
    names = ("smoke.reading.read_line", "smoke.on_line", "smoke.reading.read")
    names = (*names, "smoke.reading.parse", "smoke.reading.Reading")
    yield "smoke.reading", Parser(names, _smoke)
    names = (
        "probes.installed.copies_of",
        "probes.installed.packages",
        "probes.installed.built_for",
    )
    yield "probes.installed", Parser(names, _packages)
    yield (
        "documents",
        Parser(("trust",), _forged, (factfile.FactsError,), slow=True),
    )
    names = ("knowledge.renewed.read", "knowledge.renewed.sign", "knowledge.renewed.use")
    yield "knowledge.renewed", Parser(names, _renewed, (renewed.BadFile,))
    yield (
        "model.factfile.loads",
        Parser(("model.factfile.loads",), _document, (factfile.FactsError,)),
    )
    yield (
        "model.factfile.from_plain",
        Parser(("model.factfile.from_plain",), _plain_document, (factfile.FactsError,)),
    )
    yield (
        "conceal",
        Parser(("privacy",), _secret, slow=True),
    )
    yield "redact", Parser(("privacy",), lambda data: redacted(any_text(data)), slow=True)
    yield "judged", Parser(("rules", "render"), lambda data: judged(any_text(data)), slow=True)
    names = ("reports", "cli.saved.facts_in")
    yield "reports.reading", Parser(names, _report, (NotTextError,), slow=True)
    yield "reports.judged", Parser(("rules",), _judged_report, (NotTextError,), slow=True)
    names = ("host.recording.content", "host.recording.decoded", "host.recording.ReplayHost")
    yield "replay", Parser(names, _recording, (recording.ReplayError,), slow=True)


def _hosts() -> Iterator[tuple[str, Parser]]:
    """Probes that read many texts of a host: each of them is the outside text or a part of it."""
    kept: tuple[str, ...] = ("/site",)
    env = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/x:/y"}
    probes: tuple[tuple[str, Callable[[bytes], object]], ...] = (
        ("platform.container_kind", _of_host(platform.container_kind)),
        ("platform.hypervisor", _of_host(lambda host: platform.hypervisor(host, "6.8"))),
        ("toolkit.note_compiler", _noted(toolkit.note_compiler, {"CXX": "g++-13"}, False)),
        ("examine.read_environment", _of_host(examine.read_environment)),
        ("kernel.note_fabric", _noted(kernel.note_fabric, (), fast=False)),
        ("indexes.read_index", _of_host(lambda host: indexes.read_index(host, "/work", True))),
        ("interpreter.read_target", _of_host(_target)),
        ("kernel.read_kernel", _of_host(lambda host: kernel.read_kernel(host, fast=False))),
        (
            "libcuda.read_libcuda",
            _of_host(lambda host: libcuda.read_libcuda(host, streamed.Patience())),
        ),
        (
            "libraries.read_libraries",
            _of_host(
                lambda host: libraries.read_libraries(host, "/site/torch", kept, "/work", env)
            ),
        ),
        ("limits.read_limits", _of_host(limits.read_limits)),
        ("kernel.module_files", _of_host(lambda host: kernel.module_files(host, ask=True))),
        ("nvml.read_nvml", _of_host(lambda host: nvml.read_nvml(host, streamed.Patience()))),
        ("kernel.note_packages", _noted(kernel.note_packages, fast=False)),
        ("pci.read_pci", _of_host(pci.read_pci)),
        ("platform.read_platform", _of_host(platform.read_platform)),
        ("target.interpreter_of", _of_host(_shebang)),
        (
            "smi.read_smi",
            _of_host(lambda host: smi.read_smi(host, "smi", streamed.Patience())),
        ),
        ("installed.compare", _of_host(_package_of_torch)),
        (
            "toolkit.read_toolkits",
            _of_host(lambda host: toolkit.read_toolkits(host, env, "/c", kept, (), fast=True)),
        ),
    )
    for name, parse in probes:
        names = (f"probes.{name}", *_WITHIN.get(name, ()))
        yield f"probes.{name}", Parser(names, parse, slow=True)
    yield (
        "probes.target.choose",
        Parser(
            ("probes.target.choose", "probes.target.named"),
            _of_host(_chosen),
            (target.UsageError,),
            slow=True,
        ),
    )


_WITHIN = {
    "indexes.read_index": ("probes.indexes.read_pip", "probes.indexes.read_uv"),
    "libraries.read_libraries": (
        "probes.elf.read_elf",
        "probes.loader.split",
        "probes.loader.expand",
    ),
    "installed.compare": ("probes.installed.archs_of",),
}
"""What a probe runs besides itself."""


def _target(host: BabblingHost) -> object:
    return interpreter.read_target(host, target.Chosen(executable=PYTHON, by="PATH"), 5.0)


@cache
def parsers() -> dict[str, Parser]:
    """All of them by name."""
    return dict((*_texts(), *_data(), *_hosts(), *of_repairs()))
