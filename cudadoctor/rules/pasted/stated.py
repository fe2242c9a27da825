"""Two facts that somebody states and that cannot go together: rules for reports only.

No program said that these things met, so what is found is likely and never certain. What a
program printed of both shows that they do meet.
"""

from msgspec.structs import replace
from packaging.version import Version

from cudadoctor.knowledge import GpuModel, Knowledge
from cudadoctor.knowledge.drivers import SPREAD
from cudadoctor.knowledge.tables import table
from cudadoctor.model.findings import INFO, POSSIBLE, Remedies
from cudadoctor.model.machine import Machine, OptVersion, origin_of
from cudadoctor.model.rule import Answer, Found, rule
from cudadoctor.model.versions import version_of
from cudadoctor.plan.remedies import (
    install_driver,
    install_torch,
    open_modules,
    proprietary_modules,
    run_elsewhere,
    upgrade_driver,
)
from cudadoctor.plan.remedies.torch import remedy_for
from cudadoctor.rules.evidence.signs import AUTHOR, bare, cuda_works, live_gpus, named_gpus
from cudadoctor.rules.gpu import FIRST_BRANCH, LAST_BRANCH
from cudadoctor.rules.pasted.installs import with_other_python
from cudadoctor.rules.pasted.refusals import offers_of
from cudadoctor.solver.demand import capability_of, platform_of, python_of
from cudadoctor.solver.supposed import begins

_GLIBC = {name: Version(text) for name, text in table("rules/glibc", dict[str, str]).items()}
"""A distribution and its release ("ubuntu 20.04", "rhel 7") -> its glibc."""


def _only_told(m: Machine) -> bool:
    """Whether only the author names torch: nobody imported it, and no list shows it."""
    told = (origin_of(m, "torch.version") or "").startswith(AUTHOR)
    seen = m.torch.imported is not None and m.torch.imported.ok is not False
    return told and not seen and m.torch.installed is not False and not m.platform.jetson


@rule(
    "torch-python-unsupported",
    title="torch {release} has no wheel for Python {python}",
    essential=False,
)
def release_without_python(m: Machine, kb: Knowledge) -> Answer:
    """On this system, this release has wheels only for Python {pythons}.

    pip and uv ignore wheels for other Python versions and then say "Could not find a version that
    satisfies the requirement".

    Fix: create an environment with a Python version that this release supports, or use a release
    that supports your Python version.
    """
    release, python, platform = m.torch.version, python_of(m), platform_of(m)
    path = (origin_of(m, "python.version") or "").startswith("a path")
    conda = (m.python.kind or "").startswith("conda")
    if release is None or python is None or not _only_told(m) or path or conda:
        return None
    rows = [
        offer
        for offer in offers_of(kb).torch
        if begins(offer.release, release) and platform in (None, offer.platform)
    ]
    pythons = {name for offer in rows for name in offer.pythons if not name.endswith("t")}
    if not rows or release.is_prerelease or any(python in offer.pythons for offer in rows):
        return None
    listed = sorted(pythons, key=Version)
    return Found(
        evidence=("torch.version", "python.version"),
        values={"release": m.torch.named, "python": python, "pythons": listed},
        sure=False,
        remedies=with_other_python(m, kb, ", ".join(listed), release.public),
    )


@rule(
    "platform-unsupported",
    title="torch {release} needs glibc {floor}, but this system has glibc {glibc}",
    essential=False,
)
def release_without_glibc(m: Machine, kb: Knowledge) -> Answer:
    """Every Linux distribution release keeps its glibc, and pip ignores wheels that need a newer
    one.

    To check by hand: run `ldd --version`. Never replace the system's glibc.

    Fix: use a torch release that was built for this glibc, a newer system, or a container.
    """
    release, here = m.torch.version, m.platform
    named = _named_glibc(m)
    glibc = here.glibc or named
    if release is None or glibc is None or m.container.kind or not _only_told(m):
        return None
    rows = [
        build
        for build in kb.builds_on(platform_of(m) or "linux_x86_64")
        if build.published is not False and begins(build.torch, release)
    ]
    floors = [build.glibc for build in rows if build.glibc]
    if not floors or len(floors) < len(rows) or glibc >= min(floors):
        return None
    there = replace(m, platform=replace(here, libc="glibc", glibc=glibc))
    shown = ("platform.distro", "platform.distro_version")
    return Found(
        evidence=("torch.version", *(("platform.glibc",) if here.glibc else shown)),
        values={
            "release": m.torch.named,
            "floor": min(floors),
            "glibc": glibc,
        },
        sure=False,
        remedies=install_torch(there, kb) or _older(there, kb) or run_elsewhere(there, kb),
    )


def _older(m: Machine, kb: Knowledge) -> Remedies:
    """The newest release whose usual build is for this glibc and Python."""
    python, glibc = python_of(m), m.platform.glibc
    for build in kb.builds_on(platform_of(m) or "linux_x86_64"):
        old = glibc is not None and build.glibc is not None and build.glibc <= glibc
        if build.default and build.published and old and python in (None, *build.pythons):
            return (remedy_for(build, m, kb),)
    return ()


def _named_glibc(m: Machine) -> OptVersion:
    """The glibc of the distribution that is named; rows name a release or its major alone."""
    distro, version = m.platform.distro, m.platform.distro_version or ""
    names = (f"{distro} {version}", f"{distro} {version.partition('.')[0]}")
    return next((_GLIBC[name] for name in names if name in _GLIBC), None)


_FLASH_ATTN = Version("2.0")
_FLASH_ATTN_FLOOR = Version("8.0")


@rule(
    "not-environment", title="flash-attn does not support this GPU", severity=INFO, essential=False
)
def flash_attn_without_gpu(m: Machine, kb: Knowledge) -> Answer:
    """flash-attn 2 needs an Ampere or newer GPU (compute capability 8.0), whichever torch is
    installed. torch has an attention of its own that runs on this GPU: pass
    attn_implementation="sdpa" to transformers, or uninstall flash-attn.

    flash-attn 1 also runs on Turing GPUs (T4, RTX 20 series).
    """
    package = m.package("flash-attn")
    version = version_of(package.version) if package else None
    present = [capability_of(gpu, kb) for gpu in live_gpus(m)]
    known = [gpu for gpu in present if gpu is not None]
    newer = len(known) < len(present) or max(known, default=_FLASH_ATTN_FLOOR) >= _FLASH_ATTN_FLOOR
    if version is None or version < _FLASH_ATTN or newer:
        return None
    return Found(evidence=("packages", "gpus"), confidence=POSSIBLE)


def _told_gpus(m: Machine, kb: Knowledge) -> list[tuple[str, GpuModel]]:
    """The GPUs that only the author names, each with its fact, where no program reached one."""
    if named_gpus(m) or cuda_works(m) or m.platform.jetson:
        return []
    models = ((n, kb.gpu_by_name(gpu.name or "")) for n, gpu in enumerate(live_gpus(m)))
    return [(f"gpus.{n}", model) for n, model in models if model is not None]


@rule("driver-unsupported-gpu", title="NVIDIA driver {driver} does not support the {gpu}")
def told_driver_without_gpu(m: Machine, kb: Knowledge) -> Answer:
    """Each branch of the driver supports only some generations of GPUs.

    `nvidia-smi` says "No devices were found", or that it cannot communicate with the driver.

    Fix: install a driver branch that supports the GPU. An old GPU may need an older branch than the
    installed one.
    """
    version = m.driver.version
    # Windows drivers of one branch count on.
    spread = 0 if m.platform.system == "Linux" and not m.platform.wsl else SPREAD
    for path, model in _told_gpus(m, kb) if version else ():
        family = kb.architecture(model.capability)
        first, last = (family.first_branch, family.last_branch) if family else (None, None)
        older = last is not None and version is not None and version.branch > last + spread
        newer = first is not None and version is not None and version.branch < first
        branch = last if older else first
        if branch is None or not (older or newer):
            continue
        driver = "driver.kernel" if m.driver.kernel else "driver.reported"
        return Found(
            evidence=(path, driver),
            values={
                "driver": version,
                "gpu": model.name.removeprefix("NVIDIA "),
                "branch": branch,
            },
            why=LAST_BRANCH if older else FIRST_BRANCH,
            sure=False,
            remedies=install_driver(m, kb) if older else upgrade_driver(m, kb, branch),
        )
    return None


_TITLES = {
    "open": "The {gpu} needs the open kernel modules, not the proprietary ones",
    "proprietary": "The {gpu} needs the proprietary kernel modules, not the open ones",
}


@rule("driver-wrong-flavour", title=_TITLES["open"])
def told_modules_without_gpu(m: Machine, kb: Knowledge) -> Answer:
    """Blackwell and newer GPUs work only with the open kernel modules, GPUs older than Turing only
    with the proprietary ones. The driver version itself is correct.

    Fix: install the other type of kernel module (open or proprietary) from the same branch, then
    restart the machine.
    """
    wanted = {"proprietary": ("only", "open"), "open": ("none", "proprietary")}
    kind, needed = wanted.get(m.driver.flavour or "", ("", ""))
    for path, model in _told_gpus(m, kb) if bare(m) else ():
        if model.open_modules == kind:
            return Found(
                evidence=(path, "driver.flavour"),
                values={"gpu": model.name.removeprefix("NVIDIA ")},
                title=_TITLES[needed],
                sure=False,
                remedies=open_modules(m, kb) if needed == "open" else proprietary_modules(m, kb),
            )
    return None
