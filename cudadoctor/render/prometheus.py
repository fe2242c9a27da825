"""The text format of Prometheus, for the textfile collector of its node exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cudadoctor.model.machine import Gpu, Machine
from cudadoctor.render import Checked, Report, inert

Labels = dict[str, object]
Sample = tuple[Labels, float]
VERDICTS = ("healthy", "warnings", "broken", "undecided")


def exposition(helps: Mapping[str, str], samples: Mapping[str, Iterable[Sample]]) -> str:
    """The families that have samples, each with its help. helps: name -> what it counts."""
    found = {name: [*samples.get(name, ())] for name in helps}
    return "".join(
        f"# HELP cudadoctor_{name} {helps[name]}\n# TYPE cudadoctor_{name} gauge\n"
        + "".join(f"cudadoctor_{name}{_labels(labels)} {value:.10g}\n" for labels, value in family)
        for name, family in found.items()
        if family
    )


def _labels(labels: Labels) -> str:
    told = [f'{name}="{_escaped(inert(str(value)))}"' for name, value in labels.items()]
    return "{" + ",".join(told) + "}" if told else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")


def report(checks: Sequence[Checked], timestamp_s: float) -> str:
    """Every family of a check; with several documents, each sample names its own."""
    shown = [(named(checked), checked.shown) for checked in checks if checked.shown is not None]
    samples: dict[str, list[Sample]] = {
        name: [
            ({**source, **labels}, value)
            for source, report in shown
            for labels, value in family(report)
        ]
        for name, family in _FAMILIES.items()
    }
    samples["readable"] = [
        (named(checked), float(checked.shown is not None))
        for checked in checks
        if checked.name is not None
    ]
    samples["checked_timestamp_seconds"] = [({}, timestamp_s)]
    return exposition(_HELP, samples)


def named(checked: Checked) -> Labels:
    return {} if checked.name is None else {"source": checked.name}


def _verdict(shown: Report) -> list[Sample]:
    verdict = shown.diagnosis.verdict
    return [({"verdict": name}, float(name == verdict)) for name in VERDICTS]


def _finding(shown: Report) -> list[Sample]:
    """One a cause: several rules may find the same, the gravest first."""
    found: dict[str, Labels] = {}
    for finding in shown.diagnosis.findings:
        found.setdefault(
            finding.cause,
            {
                "cause": finding.cause,
                "severity": finding.severity.label,
                "confidence": finding.confidence.label,
                "primary": str(finding.cause == shown.diagnosis.primary).lower(),
            },
        )
    return [(labels, 1.0) for labels in found.values()]


def _findings(shown: Report) -> list[Sample]:
    labels = [finding.severity.label for finding in shown.diagnosis.findings]
    return [({"severity": name}, labels.count(name)) for name in ("error", "warning", "info")]


def _causes(shown: Report) -> list[Sample]:
    diagnosis = shown.diagnosis
    undecided = {undecided.cause for undecided in diagnosis.undecided}
    return [
        ({"state": "ruled_out"}, len(diagnosis.passed)),
        ({"state": "not_checked"}, len(undecided)),
    ]


def _info(shown: Report) -> list[Sample]:
    machine = shown.machine
    driver, torch, imported = machine.driver, machine.torch, machine.torch.imported
    values = {
        "version": shown.version,
        "tables": shown.knowledge,
        "driver": driver.version,
        "driver_flavour": driver.flavour,
        "driver_cuda": driver.cuda,
        "torch": torch.named,
        "torch_build": torch.build,
        "torch_cuda": torch.cuda,
        "cudnn": imported and imported.cudnn,
        "nccl": imported and imported.nccl,
        "python": machine.python.version,
    }
    return [({name: _text(value) for name, value in values.items()}, 1.0)]


def _text(value: object) -> str:
    """An empty label is the same as none: what is not known."""
    return "" if value is None else str(value)


def _gpus(shown: Report) -> list[Sample]:
    """What counts them may disagree, which is worth an alert."""
    machine = shown.machine
    imported = machine.torch.imported
    bus = machine.pci and [gpu for gpu in machine.pci if gpu.vendor == "nvidia"]
    seen = {
        "pci": None if machine.pci is None else len(bus or ()),
        "driver": None if machine.gpus is None else len(machine.gpus),
        "responding": None if machine.gpus is None else len(_responding(machine)),
        "cuda": machine.driver.libcuda.count,
        "torch": imported.device_count if imported else None,
    }
    return [({"seen_by": name}, count) for name, count in seen.items() if count is not None]


def _responding(machine: Machine) -> list[Gpu]:
    return [gpu for gpu in machine.gpus or () if not (gpu.code or gpu.failed)]


def _gpu_info(shown: Report) -> list[Sample]:
    def labels(gpu: Gpu) -> Labels:
        # Of a redacted report the id would join nothing.
        kept = {"uuid": gpu.uuid} if gpu.uuid and shown.shade(gpu.uuid) == gpu.uuid else {}
        return {
            "gpu": gpu.index,
            **kept,
            "name": _text(gpu.name),
            "capability": _text(gpu.capability),
        }

    return [(labels(gpu), 1.0) for gpu in shown.machine.gpus or ()]


def _stage(shown: Report) -> list[Sample]:
    smoke = shown.machine.smoke
    return [
        ({"stage": stage.name, "device": smoke.device}, float(stage.status == "passed"))
        for stage in (smoke.stages if smoke else ())
        if smoke and stage.status != "skipped"
    ]


def _stage_seconds(shown: Report) -> list[Sample]:
    smoke = shown.machine.smoke
    return [
        ({"stage": stage.name, "device": smoke.device}, stage.seconds)
        for stage in (smoke.stages if smoke else ())
        if smoke and stage.seconds is not None
    ]


def _tables(shown: Report) -> list[Sample]:
    return [] if shown.age.days is None else [({}, shown.age.days * 86_400.0)]


def _seconds(shown: Report) -> list[Sample]:
    return [] if shown.seconds is None else [({}, shown.seconds)]


_FAMILIES: dict[str, Callable[[Report], list[Sample]]] = {
    "verdict": _verdict,
    "findings": _findings,
    "finding": _finding,
    "causes": _causes,
    "info": _info,
    "gpus": _gpus,
    "gpu_info": _gpu_info,
    "training_stage_passed": _stage,
    "training_stage_seconds": _stage_seconds,
    "tables_age_seconds": _tables,
    "check_duration_seconds": _seconds,
}
_HELP = {
    "verdict": "1 for the verdict of the check, 0 for the others",
    "findings": "Number of findings by severity",
    "finding": "1 for each cause that was found",
    "causes": "Number of causes that were ruled out, and that could not be checked",
    "info": "Versions, as labels; an empty label is not known",
    "gpus": "Number of NVIDIA GPUs as the PCI bus, the driver, CUDA and torch count them",
    "gpu_info": "1 for each GPU that the driver reports",
    "training_stage_passed": "1 if a stage of the training step passed, 0 if it failed",
    "training_stage_seconds": "Duration of a stage of the training step",
    "tables_age_seconds": "Age of the compatibility tables",
    "check_duration_seconds": "Duration of the check",
    "readable": "1 if the document could be read, 0 if not",
    "checked_timestamp_seconds": "When the check ran",
}
