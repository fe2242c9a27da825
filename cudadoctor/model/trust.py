"""What may become a command, as a type.

A machine that the probes looked at is the user's own: its paths and indexes may act. Whatever was
read (--from, a recording, a comparison) is `Foreign`, whoever wrote it and wherever: its facts are
judged and shown as they stand, and choose no program, no index and no package.

- The way in: `foreign` marks a machine once, where documents are read, and nothing takes that back.
- `acting` is the machine as those see it who write commands. A foreign one is parsed into inert
  values: the interpreter is `$PYTHON`, a manager its bare name, an index and a folder not known.
  Rules go on comparing the facts themselves, paths with paths.
- The way out: a step holds `Word`s only, and only this module makes one. `Exit` takes the words of
  the user's own machine as they are. Of a foreign one each must be a word of the grammar below; a
  step with any other word is left to be done by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NewType

from msgspec.structs import asdict, replace

from cudadoctor.model.machine import Distribution, Identity, Machine, Manager, OptStr, Strings
from cudadoctor.model.requirements import EXTENSIONS, TORCH_FAMILY, USUAL
from cudadoctor.model.variables import NAMES, PREFIXES
from cudadoctor.model.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cudadoctor.knowledge import Knowledge
    from cudadoctor.model.findings import Edit, PackageChange

PLACEHOLDER = "$PYTHON"
"""Stands for an interpreter whose path is not known or not to be believed: the reader sets it."""

USER = "$USER"
"""Stands for the user's name where it is not known or not to be shown: the shell fills it in."""

NOT_TAKEN = (
    "The command needs a name, a path or a URL that cudadoctor does not take from a saved "
    "report; to get the command, run `cudadoctor fix --print` on the machine that the report "
    "describes."
)

_OWN_INDEX = (
    "cudadoctor does not use the package index in the saved report ({host}); if the packages "
    "must come from that index, add it to the command yourself."
)

Word = NewType("Word", str)
"""A word that a shell may get to see."""
Command = tuple[Word, ...]


class Foreign(Machine, frozen=True, kw_only=True):
    """A machine out of a document, a recording or a pasted report."""


def foreign(machine: Machine) -> Foreign:
    """The machine as one that was read.

    Titles show torch's version as it was written: here only what is that version.
    """
    if isinstance(machine, Foreign):
        return machine
    torch = machine.torch
    if torch.text and (torch.version is None or version_of(torch.text) != torch.version):
        machine = replace(machine, torch=replace(torch, text=None))
    return Foreign(**asdict(machine))


def ours(word: str) -> Word:
    """A word of this program's own, or of the machine that it looked at itself."""
    return Word(word)


def typed(*argv: str) -> Command:
    """The same for a whole command."""
    return tuple(map(ours, argv))


# --- the machine as it may act ----------------------------------------------------------------


def is_doctors_own(machine: Machine) -> bool:
    """Whether the doctor looks at its own environment, in which nobody trains."""
    return bool(machine.python.own) and machine.torch.installed is False


_OF_THE_USER = (
    *("index", "base_prefix", "site_packages", "user_site", "pip_python", "path_python", "path"),
)


def acting(machine: Machine) -> Machine:
    """The machine as those see it who write commands: the user's own as it is, a foreign one inert.

    Its paths exist nowhere, as in a redacted document. Its packages are those with a name (PEP 508)
    and a version (PEP 440), "" where a report names none.
    """
    if not isinstance(machine, Foreign):
        return machine
    python, driver, kernel = machine.python, machine.driver, machine.platform.kernel
    prefix, project = _folders(python.prefix or "", python.project)
    inert = {
        "redacted": True,
        "identity": Identity(),
        "platform": replace(machine.platform, kernel=kernel if _fits(_KERNEL, kernel) else None),
        "python": replace(
            python,
            executable=PLACEHOLDER,
            prefix=prefix,
            project=project,
            managers=python.managers
            and tuple(Manager(name=manager.name, path="") for manager in python.managers),
            **dict.fromkeys(_OF_THE_USER),
        ),
        "driver": replace(
            driver,
            packages=driver.packages
            and tuple(package for package in driver.packages if _fits(_SYSTEM, package.name)),
            blacklisted_by=driver.blacklisted_by
            and tuple(file for file in driver.blacklisted_by if _fits(_MODPROBE, file)),
        ),
        "packages": machine.packages and tuple(filter(_is_named, machine.packages)),
    }
    return Machine(**(asdict(machine) | inert))


def _is_named(package: Distribution) -> bool:
    known = not package.version or version_of(package.version) is not None
    return _fits(_NAME, package.name) and known


def _folders(prefix: str, project: OptStr) -> tuple[OptStr, OptStr]:
    """Prefix and project as a redacted document has them: whose tool owns the environment."""
    if project and prefix.startswith(project):
        return "~/environment", "~"
    inside_pixi = "/.pixi/envs/" in prefix.replace("\\", "/")
    return "~/.pixi/envs/default" if inside_pixi else None, project and "~"


# --- the way out --------------------------------------------------------------------------------


class Exit:
    """The way out for the commands of one machine.

    own_host: where it has a package index of its own. own_index: what is said of that index if the
    machine is a foreign one.
    """

    def __init__(self, machine: Machine, knowledge: Knowledge, own_host: OptStr) -> None:
        self._foreign = isinstance(machine, Foreign)
        self.own_index = _OWN_INDEX.format(host=own_host) if self._foreign and own_host else None
        self._projects = (
            knowledge.projects | EXTENSIONS | {*TORCH_FAMILY} | _CONDA | _OTHERS
            if self._foreign
            else frozenset()
        )

    def commands(self, wanted: tuple[Strings, ...]) -> tuple[Command, ...] | None:
        """The commands as words; None where one of them holds what a document may not choose."""
        if self._foreign and not all(map(self._is_command, wanted)):
            return None
        return tuple(typed(*argv) for argv in wanted)

    def variables(self, wanted: Mapping[str, OptStr]) -> dict[str, Word | None] | None:
        """The same for variables that are set or (None) unset."""
        if self._foreign and not all(_is_setting(*variable) for variable in wanted.items()):
            return None
        return {name: None if value is None else ours(value) for name, value in wanted.items()}

    def edits(self, wanted: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """Of a foreign machine a file elsewhere than usual is left to be written by hand."""
        if not self._foreign:
            return wanted
        return tuple(
            edit
            if _fits(_WRITTEN, edit.file)
            and all(_fits(_LINE, line) for line in edit.what.split("\n"))
            else replace(edit, mode="by hand")
            for edit in wanted
        )

    def change(self, wanted: PackageChange) -> PackageChange | None:
        """A change of packages without strangers to remove; None where one is to be installed."""
        if not self._foreign:
            return wanted
        sound = all(map(self._is_requirement, (*wanted.install, *wanted.then)))
        if not sound or not all(
            url is None or _is_address(url) for url in (wanted.index, wanted.find_links)
        ):
            return None
        return replace(wanted, remove=tuple(filter(self._is_requirement, wanted.remove)))

    def _is_command(self, argv: Strings) -> bool:
        """Whether a program of the list is run, with words that cannot lead it astray."""
        program, *others = argv or ("",)
        if program == "sh":  # nothing but NVIDIA's installer, and without its kernel modules
            return len(others) > 1 and _fits(_RUN, others[0]) and others[1:] == [*_OF_RUN]
        if program == "usermod":  # a document could name a group whose members are as good as root
            return others[:1] == ["-aG"] and others[2:] == [USER] and _fits(_GROUPS, others[1])
        known = program in _PROGRAMS or _fits(_PYTHON, program) or _fits(_MADE, program)
        return known and all(map(self._is_argument, others))

    def _is_argument(self, word: str) -> bool:
        if (
            word in _ARGUMENTS
            or word in _OF_DRIVERS
            or self._is_requirement(word)
            or _is_address(word)
        ):
            return True
        patterns = (_VALUE, _MADE, _SYSTEM, _ACCESS, _SOURCE, _MODPROBE, _BOOTED, _RUN)
        return any(_fits(pattern, word) for pattern in patterns)

    def _is_requirement(self, text: str) -> bool:
        """Whether it is a project of the tables, with or without a version (PEP 440)."""
        found = re.fullmatch(_REQUIREMENT, text)
        return found is not None and found["name"].lower() in self._projects


def _is_written(edit: Edit) -> bool:
    """Whether the file is one that remedies write, and each line one of theirs."""
    lines = edit.what.split("\n")
    return _fits(_WRITTEN, edit.file) and all(_fits(_LINE, line) for line in lines)


def is_host(text: str) -> bool:
    """Whether it can be the name of a host, to be shown."""
    return _fits(_HOST, text)


def _is_address(text: str) -> bool:
    """Whether it lies on a host that the tables name."""
    found = re.fullmatch(_ADDRESS, text)
    return found is not None and found["host"] in _HOSTS


_MORE_NAMES = ("TMPDIR", "APPTAINER_NV", "FLASH_ATTENTION_FORCE_BUILD")


def _is_setting(name: str, value: OptStr) -> bool:
    """Whether a variable may be set to that or, with None, be unset."""
    known = name in NAMES or name in _MORE_NAMES or name.startswith(PREFIXES)
    return known and name.isidentifier() and (value is None or _fits(_SETTING, value))


def _fits(pattern: str, text: OptStr) -> bool:
    return text is not None and re.fullmatch(pattern, text) is not None


# --- the grammar of what may act although it was read -------------------------------------------
#
# Closed lists, of what the remedies and the writers of package managers say themselves. What comes
# out of a document gets through only as a number, a version, a known project or a usual place.
# The patterns are compiled when a foreign machine first needs them: a check of one's own does not.

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,80}[A-Za-z0-9])?"
_NUMBER = r"\d{1,9}"
_LOCAL = r"(?:pt\d{2,3})?(?:cu\d{2,3}|cpu|xpu|rocm\d(?:\.\d{1,2}){1,2})"
_VERSION = (
    rf"{_NUMBER}(?:\.{_NUMBER}){{0,6}}(?:\.?(?:a|b|rc|post|dev){_NUMBER}){{0,2}}"
    rf"(?:\.\*)?(?:\+{_LOCAL})?"
)
_REQUIREMENT = (
    rf"(?i)(?P<name>[a-z0-9][a-z0-9._-]*)(?:\[pytorch\])?"
    rf"(?:(?:[=!<>~]=|[=<>]){_VERSION}(?:,(?:[=!<>~]=|[<>]){_VERSION})*)?"
)
_HOSTS = frozenset(
    {"download.pytorch.org", "data.pyg.org", "pypi.jetson-ai-lab.io", "pypi.org"}
    | {"developer.download.nvidia.com", "nvidia.github.io", "aur.archlinux.org"}
    | {"download.openmmlab.com", "dl.fbaipublicfiles.com"}
)
_HOST = r"(?i)[a-z0-9](?:[a-z0-9-]{0,62}\.){0,8}[a-z0-9-]{0,62}"
_ADDRESS = r"https://(?P<host>[a-z.-]+)(?:/[A-Za-z0-9._+-]+)*/?"

_FLAVOURS = (
    "amd64|arm64|x86_64|aarch64|generic|lowlatency|cloud|rt|pae|hwe|lts|edge|aws|azure|gcp|gke|gkeop"
    r"|oracle|ibm|kvm|oem|raspi|nvidia|tegra|intel|bluefield|64k|pve|zen\d?|hardened\d?|arch|default|WSL2"
    r"|microsoft|standard|MANJARO|deb\d{1,2}|longterm|64kb|cachyos|xanmod|liquorix|bpo|deb|el\d{1,2}(?:uek)?|fc\d{2}|amzn\d{1,4}|cm\d|lp\d{6}"
    r"|arch\d|rc\d|uek|debug|server|desktop|cos|coreos|linuxkit|mvl\d{1,2}"
)
_KERNEL = rf"\d{{1,2}}\.\d{{1,3}}(?:\.\d{{1,3}})?(?:[-.+~_](?:\d{{1,6}}|{_FLAVOURS}))*\+?"
_PARTS = (
    "nvidia|libnvidia|cuda|driver|drivers|server|open|compute|utils|dkms|kmp|default|preempt|azure"
    "|signed|akmod|kmod|xorg|x11|xserver|drv|video|firmware|kernel|source|common|modprobe|legacy"
    "|settings|persistenced|gl|cfg1|decode|encode|extra|fbc1|ifr1|headless|no|latest|gfx|tesla|libs"
    "|current|alternative|linux|lts|headers|proxmox|cloud|generic|amd64|arm64|python3|venv|smi|devel"
    "|toolkit|fabricmanager|fabric|manager|pinning|meta|zen|hardened|rt|longterm|64kb|computeG05"
    "|gfxG05|libcuda1|gsp"
)
_SYSTEM = (
    rf"(?:{_PARTS})\d{{0,3}}(?:-(?:{_PARTS}|G0\d|\d{{1,3}}(?:\.\d{{1,3}}){{0,2}}(?:xx)?))*"
    rf"(?::(?:amd64|arm64|i386))?(?:=\d{{3}}(?:\.\d{{1,3}}){{1,2}}(?:-\*)?)?"
    rf"|(?:linux|proxmox|kernel(?:\d\.\d{{1,2}})?)(?:-(?:uek|64k))?"
    rf"-(?:headers|devel|modules-extra)(?:-{_KERNEL})?"
    rf"|linux\d{{2,3}}-nvidia(?:-\d{{3}}xx)?"
    rf"|kmod-nvidia-(?:open-)?\d{{3}}\.\d{{2,3}}(?:\.\d{{2}})?-\d[\d.]{{2,9}}-\d[\d.]{{0,15}}"
    rf"|linux-modules-nvidia-\d{{3}}(?:-server)?(?:-open)?-"
    rf"(?:{_KERNEL}|aws|azure|gcp|oracle|(?:generic|lowlatency)(?:-hwe-\d\d\.04)?)"
)
_SOURCE = (
    r"https://developer\.download\.nvidia\.com/compute/cuda/repos/(?P<of>[a-z]{4,6}\d{1,4})"
    r"/(?:x86_64|sbsa)/cuda-(?:keyring_1\.1-1_all\.deb|(?P=of)\.repo)"
    r"|https://download\.nvidia\.com/(?:opensuse/(?:leap/1\d\.\d|tumbleweed)|suse/sle1\d(?:sp\d)?)"
    r"|https://download\.nvidia\.com/XFree86/Linux-(?P<cpu>x86_64|aarch64)"
    r"/(?P<driver>\d{3}\.\d{2,3}(?:\.\d{2})?)/NVIDIA-Linux-(?P=cpu)-(?P=driver)\.run"
    r"|https://dl\.fedoraproject\.org/pub/epel/epel-release-latest-\d{1,2}\.noarch\.rpm"
    r"|https://mirrors\.rpmfusion\.org/(?P<free>free|nonfree)/fedora"
    r"/rpmfusion-(?P=free)-release-\d{2}\.noarch\.rpm"
    r"|ol\d{1,2}_codeready_builder|codeready-builder-for-rhel-\d{1,2}-(?:x86_64|aarch64)-rpms"
)
"""Where the packages of drivers come from."""
_RUN, _OF_RUN = (
    r"/var/cache/NVIDIA-Linux-(?:x86_64|aarch64)-\d{3}\.\d{2,3}(?:\.\d{2})?\.run",
    ("--silent", "--no-kernel-modules"),
)
_BOOTED = rf"/boot/vmlinuz-{_KERNEL}"
_MODPROBE = r"/(?:etc|usr/lib|lib|run|usr/local/lib)/modprobe\.d/[A-Za-z0-9_.-]+\.conf"
_GROUPS = r"(?:video|render|nvidia)(?:,(?:video|render|nvidia)){0,2}"
_WRITTEN = (
    r"/etc/(?:modprobe\.d/[A-Za-z0-9_.-]+\.conf|security/limits\.d/90-(?:nofile|memlock)\.conf|default/grub"
    r"|udev/rules\.d/71-nvidia-dev-char\.rules|rpm/macros\.nvidia-kmod"
    r"|modules-load\.d/nvidia-uvm\.conf|ld\.so\.conf\.d/ld\.wsl\.conf"
    r"|systemd/system/(?:slurmd\.service\.d/memlock\.conf|mig-instances\.service)"
    r"|apt/sources\.list\.d/nvidia-container-toolkit\.list)"
)
_LINE = (
    rf"|# replaces {_MODPROBE}|blacklist (?:nouveau|nova_core)|options nouveau modeset=0"
    r"|options nvidia(?:_uvm)?(?: (?:uvm_disable_hmm|NVreg_\w{1,40})=\d{1,6})+"
    r"|/usr/lib/wsl/lib"
    r"|nvidia_uvm|\[Service\]|LimitMEMLOCK=infinity|\[Unit\]|\[Install\]|Type=oneshot"
    r"|RemainAfterExit=yes"
    r"|Description=Create MIG instances|After=nvidia-persistenced\.service"
    r"|WantedBy=multi-user\.target"
    r"|ExecStart=-?/usr/bin/nvidia-smi (?:mig )?-i \d{1,2}(?:,\d{1,2}){0,15} (?:-mig 1|-cgi 0 -C)"
    r"|\* (?:soft|hard) (?:nofile \d{4,7}|memlock unlimited)|%_with_kmod_nvidia_open 1"
    r"|# The proprietary modules: %_with_kmod_nvidia_open is not set\."
    r'|GRUB_CMDLINE_LINUX="\$GRUB_CMDLINE_LINUX (?:iommu=pt|pci=realloc)"'
    r'|ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN\+="/usr/bin/nvidia-ctk system '
    r'create-dev-char-symlinks --create-all"'
    r"|deb \[signed-by=/usr/share/keyrings/nvidia-container-toolkit-keyring\.asc\] "
    r"https://nvidia\.github\.io/libnvidia-container/stable/deb/\$\(ARCH\) /"
)
"""What may be written, line by line; the first alternative is an empty line."""

_NEW = r"\.venv-torch(?:-conda|-py\d{2,3})?(?:[/\\]uv)?"
_MADE = rf"{_NEW}(?:/bin/python|\\Scripts\\python\.exe|\\python\.exe)?"
_PYTHON = r"python\d\.\d{1,2}"
_PROGRAMS = frozenset(
    """
    $PYTHON python3 py uv pip conda mamba micromamba pixi poetry pdm cudadoctor apt-get dnf zypper
    pacman
    mhwd ubuntu-drivers nixos-rebuild modprobe nvidia-modprobe nvidia-smi systemctl dkms akmods
    mokutil kmodgenca update-initramfs dracut dracut-rebuild mkinitcpio ldconfig wsl.exe
    nvidia-smi.exe
    winget wget curl dpkg apk xbps-install emerge
    docker podman nerdctl nvidia-ctk lxc incus pct mount ulimit usermod srun bsub qsub
    nvidia-cuda-mps-control fuser ps grep grubby update-grub setsebool
    nvidia-bug-report.sh
    find sed yum chwd prime-select subscription-manager nvidia-uninstall grub-mkconfig
    grub2-mkconfig git makepkg system76-power supergfxctl envycontrol fmpm kernelstub az aws gcloud
    """.split()  # noqa: SIM905
)
_ARGUMENTS = frozenset(
    """
    $PYTHON -C -L -P -R -Syu -a -c -i -m -n -p -r -u -y --allow-existing --find-links --force
    --gpgpu
    --gpu-reset --import --index --index-url --default-index --extra-index-url --manifest-path
    --dry-run --ignore-installed --reinstall -dm -cgi -mig -srs conf-compute mig
    --purge
    --no-build-isolation --no-cache-dir --pypi --project --python --refresh --shutdown --upgrade
    pip venv ensurepip install uninstall remove create add sync update upgrade full-upgrade refresh
    module reset enable restart --now versionlock autoinstall boot reboot check conda-forge pytorch
    nvidia torch DEFAULT cache purge --force-reinstall
    nvidia_uvm pci nonfree linux-headers python python3-venv
    uv -O -S -fsSLo --id --needed --gpg-auto-import-keys addrepo
    build-essential base-devel build-base gcc-c++ sys-devel/gcc cuda python3-torch
    Microsoft.VCRedist.2015+.x64
    container_use_devices on
    $USER -aG -d -fsSL -gpu -I -Is -l -o -v --create-all --device --gpus
    --security-opt=label=disable --gres=gpu:1 --pty --rm --runtime=containerd --runtime=docker
    --update-kernel=ALL --output=/etc/cdi/nvidia.yaml --args=iommu=pt --args=pci=realloc
    iommu=pt pci=realloc all bash cdi configure containerd create-dev-char-symlinks docker
    docker.io/library/ubuntu
    generate list num=1
    nvidia-smi nvidia-container-toolkit nvidia.com/gpu=all pid,user,etime,cmd remount,size=8G run
    runtime RegistryDwords /proc/driver/nvidia/params select=1:ngpus=1 switch system ubuntu 65536
    /dev/shm /usr/share/keyrings/nvidia-container-toolkit-keyring.asc
    /etc/yum.repos.d/nvidia-container-toolkit.repo
    /var/lib/shim-signed/mok/MOK.der /var/lib/dkms/mok.pub /etc/pki/akmods/certs/public_key.der
    """.split()  # noqa: SIM905
)
_OF_DRIVERS = frozenset(
    """
    nvidia_drm nvidia_modeset nvidia_peermem nvidia_fs -e -name -exec {} + --update --silent
    --enable --rebuild dup --add-repo --set-enabled --allowerasing --allow-downgrades
    --auto-agree-with-licenses stop on-demand reinstall distro-sync dist-upgrade config-manager
    repos crb clone -siD graphics hybrid --mode Hybrid --oldpackage nvlsm ib_umad
    /etc/pki/akmods/certs/akmods-ublue.der
    -Sy void-repo-nonfree /var/lib /usr/share -path */nvidia-pubkeys/MOK-nvidia-*.der mokutil
    switch-to daemon-reload slurmd nvidia-gridd nvidia-suspend nvidia-resume nvidia-hibernate
    powertools sed wget git dkms ubuntu-drivers-common dnf-plugins-core
    /var/cache/apt/archives/cuda-keyring.deb
    python3-dnf-plugin-versionlock firmware-misc-nonfree libcuda1 *nvidia* /etc/apt sources.list
    addlock --set-default unix-char nvidia-uvm nvidia-uvm-tools device
    source=/dev/nvidia-uvm path=/dev/nvidia-uvm
    source=/dev/nvidia-uvm-tools path=/dev/nvidia-uvm-tools
    vm deallocate start --resource-group GROUP --name NAME ec2 stop-instances start-instances wait
    instance-stopped --instance-ids INSTANCE compute instances unlimited mig-instances.service
    -q POWER nvsm nvidia-dcgm nvidia-persistenced --switch
    debian.sources /boot/grub/grub.cfg /boot/grub2/grub.cfg
    """.split()  # noqa: SIM905
) | {
    r"s/^\(deb.* main\).*/\1 contrib non-free non-free-firmware/",
    "s/^Components: main.*/Components: main contrib non-free non-free-firmware/",
    r"s/^\s*blacklist\s\+nvidia/#&/",
    r"s/^\s*alias\s\+nvidia\s\+off/#&/",
    r"s,^\s*install\s\+nvidia\s.*bin/[ft],#&,",
}
"""More of them, of what installs drivers; the last are what sed does to files of apt, modprobe."""
_BUS_ID = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.\d)?"
_VALUE = (
    rf"\d{{1,2}}(?:,\d{{1,2}}){{1,31}}|{_BUS_ID}(?:,{_BUS_ID}){{0,31}}|"
    r"\d{1,4}|-?\d\.\d{1,2}|\*nvidia\*\d{3}\*|nvidia-driver:(?:\d{3}|latest|open)(?:-?(?:open|dkms))?"
    r"|g\+\+-\d{1,2}|gcc\d{1,2}(?:-c\+\+)?|gcc-toolset-\d{1,2}-gcc-c\+\+"
    r"|python3(?:\.\d{1,2}|\d{0,2})-(?:dev|devel|venv)|nvidia/label/cuda-\d{1,2}\.\d\.0"
    r"|/etc/yum\.repos\.d/cuda-(?:rhel|fedora|amzn)\d{1,4}\.repo"
)
_GROUP = r"(?:video|render|nvidia|gpu|gpus|gpuusers|cuda|vglusers)"
_ACCESS = rf"{_GROUP}(?:,{_GROUP}){{0,2}}|/dev/nvidia\d{{1,2}}|\d{{1,7}}(?:,\d{{1,7}}){{0,7}}"
"""Groups of device nodes, the nodes themselves, and the numbers of processes."""
_CONDA = frozenset(
    {"pytorch", "pytorch-gpu", "pytorch-cpu", "pytorch-cuda", "cudatoolkit", "cuda-version"}
    | {"cudnn", "mkl", "python", "opencv", "faiss", "cuda-toolkit", "gcc", "gxx", "libstdcxx-ng"}
    | {"libcudnn", "nccl", "libcublas", "cuda-cudart", "libcufft", "cuda-cupti", "libcurand"}
    | {"libcusolver", "libcusparse", "cusparselt", "libnvjitlink", "cuda-nvrtc", "cpuonly"}
    | {"pytorch-mutex", "torchtriton"}
)
_OTHERS = frozenset(
    {
        *USUAL,
        "pynvml",
        "nvidia-ml-py",
        "triton-windows",
        "pytorch-triton",
        "typing-extensions",
        "filelock",
        "fsspec",
    }
    | {"ninja", "wheel", "packaging", "psutil"}
    | {"jinja2", "mpmath", "networkx", "setuptools", "sympy"}
)
"""What remedies name, and what every torch requires beside NVIDIA's wheels."""

_UUID = r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LIBRARIES = (
    r"/(?:usr/)?(?:local/)?lib(?:32|64)?(?:/(?:x86_64|aarch64)-linux-gnu)?|/usr/lib/wsl/lib"
    r"|/usr/local/nvidia/lib(?:64)?"
    r"|/usr/local/cuda(?:-\d{1,2}\.\d{1,2})?/(?:lib64|lib|compat|extras/CUPTI/lib64"
    r"|targets/(?:x86_64|sbsa|aarch64)-linux/lib)"
)
_INTERFACE = (
    r"(?:eth|ib|bond)\d{1,3}|eno\d{1,4}|en[pP]\d{1,5}(?:[ps]\d{1,3}){1,2}(?:f\d)?(?:np\d)?"
    r"|ens\d{1,4}(?:f\d)?(?:np\d)?|ibp\d{1,3}s\d{1,3}"
)
_SETTING = (
    rf"{_INTERFACE}|WARN|INFO|TRUE|compute,utility|"
    r"\d{1,9}(?:,\d{1,4})*|/usr/local/cuda/bin/ptxas|PCI_BUS_ID|FASTEST_FIRST|/var/tmp|/path/to/a/larger/disk"
    rf"|{_UUID}(?:,{_UUID})*|(?:{_LIBRARIES})(?::(?:{_LIBRARIES}))*"
    r"|\d{1,2}\.\d(?: \d{1,2}\.\d){0,7}|/usr/bin/g(?:\+\+|cc)(?:-\d{1,2})?"
    r"|/opt/rh/gcc-toolset-\d{1,2}/root/usr/bin/g(?:\+\+|cc)"
    r"|/usr|/opt/cuda|/usr/lib/cuda|/usr/local/cuda(?:-\d{1,2}(?:\.\d{1,2})?)?"
    r"|C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v\d{1,2}\.\d{1,2}"
)
