"""Whole machines made of raw answers: files of a system, libraries of C, a real Python with torch.

What the kernel and the distribution say is recorded; NVML and libcuda are asked by the real scripts
through the stand-in libraries; the examined interpreter and its files are real.
"""

# ruff: noqa: ARG002

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from raw_texts import dpkg, limits, loader_cache, modules
from recorded_host import NOTHING, RecordedHost, cut_short, lines
from standin_fixtures import StandIns

from cudadoctor import knowledge
from cudadoctor.host.children import OnLine, Ran
from cudadoctor.host.local import Answer, Listing, LocalHost, Space, Stat
from cudadoctor.model.findings import Diagnosis
from cudadoctor.model.machine import Machine
from cudadoctor.probes.examine import Look, examine_host
from cudadoctor.rules.diagnose import diagnose

KERNEL = "6.8.0-87-generic"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
BUS = "/sys/bus/pci/devices"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
NO_FILE = "cannot open shared object file: No such file or directory"
GIB = 1 << 30

GEFORCE = """\
name = NVIDIA GeForce RTX 4090
pci_id = 0x268410de
capability = 89
memory = 25757220864
power_limit = 450000
power_default = 450000
nvlinks = 0
nvmlDeviceGetEccMode = 3
nvmlDeviceGetTotalEccErrors = 3
nvmlDeviceGetRemappedRows = 3
nvmlDeviceGetRetiredPagesPendingStatus = 3
nvmlDeviceGetMigMode = 3
nvmlDeviceGetGpuFabricInfoV = 3
"""
"""What a GeForce answers, and where it says that it does not support the question."""

_LOADER = frozenset(
    {"/lib", "/lib64", "/usr/lib", "/usr/lib64", LIBRARIES, "/lib/x86_64-linux-gnu"}
    | {"/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu"}
)
_OF_THE_DRIVER = re.compile(r"lib(cuda|nvidia)[\w.-]*\.so.*|nvidia.*")
_BUILT_IN = ("nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm")
_UNCLEAN = {"LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"}
_looked: dict[str, Ran] = {}
_ran: dict[tuple[str, tuple[str, ...], str], Ran] = {}
"""How a script of probes/inside ended, by what it was asked and what the library plays."""
WORKS: dict[str, object] = {
    "available": True,
    "count": 1,
    "error": "",
    "devices": [{"capability": "8.9"}],
}
"""What torch says of one RTX 4090."""


class RawHost:
    """A Host. `told` holds what the system says; change it before the machine is examined.

    nvml, cuda: scenarios of the stand-ins, None where the library is not on this machine; they
    come before what the GPU says anyway. clean_cuda: libcuda without the user's variables.
    cuda_path, clean_path: the file that the loader takes. errnos: of opening a device node.
    hidden: a real file that this machine shall not have. torch_says: of CUDA after a real import.
    hangs: NVML stays away for as long as it is waited for.
    """

    def __init__(self, standins: StandIns, python: str) -> None:
        self.standins = standins
        self.python = python
        self.real = LocalHost()
        self.told = RecordedHost(otherwise=NOTHING)
        self.gpus = GEFORCE
        self.driver = "580.95.05"
        self.cuda_level = 13000
        self.nvml: str | None = ""
        self.cuda: str | None = ""
        self.clean_cuda: str | None = None
        self.cuda_path = f"{LIBRARIES}/libcuda.so.580.95.05"
        self.clean_path: str | None = None
        self.errnos: dict[str, int] = {}
        self.hidden = re.compile(r"(?!)")
        self.torch_says: dict[str, object] = WORKS
        self.hangs = False
        self.variables: dict[str, str] = {"HOME": "/home/ada", "USER": "ada", "LANG": "C.UTF-8"}
        prefix = Path(python).parent.parent
        base = Path(python).resolve().parent.parent
        own = {str(prefix), str(base)} - {"/usr", "/"}
        self._open = tuple(f"{folder}/" for folder in own)

    # --- the Host ------------------------------------------------------------------------------

    @property
    def env(self) -> Mapping[str, str]:
        return self.variables

    @property
    def system(self) -> str:
        return "Linux"

    def read(self, path: str, limit: int = 1 << 20, offset: int = 0) -> Answer:
        return (self.real if self._is_real(path) else self.told).read(path, limit, offset)

    def listing(self, path: str) -> Listing:
        if f"{path}/".startswith(self._open):
            return self.real.listing(path)
        recorded = self.told.listing(path)
        if path not in _LOADER:
            return recorded
        names = {*recorded.names, *(n for n in self.real.listing(path).names if _is_library(n))}
        return Listing(names=tuple(sorted(n for n in names if not self._gone(f"{path}/{n}"))))

    def stat(self, path: str) -> Stat:
        return (self.real if self._is_real(path) else self.told).stat(path)

    def glob(self, pattern: str) -> tuple[str, ...]:
        found = self.told.glob(pattern)
        if pattern.startswith(self._open):
            found += self.real.glob(pattern)
        return tuple(sorted(set(found)))

    def which(self, name: str) -> str | None:
        return self.told.which(name)

    def space(self, path: str) -> Space | None:
        return self.told.space(path)

    def run(
        self,
        *argv: str,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        if argv[:2] == (self.python, "-c"):
            return self._imported()
        return self.told.run(*argv, timeout_s=timeout_s)

    def _imported(self) -> Ran:
        """What the child that imports torch prints on a machine with a GPU."""
        torch = {"kind": "torch", "ok": True, "error": "", "seconds": 1.0}
        cuda = {"kind": "cuda", "built": "13.0", "warnings": [], **self.torch_says}
        numpy = {"kind": "numpy", "installed": True, "error": ""}
        return lines({"kind": "start", "stage": "import"}, torch, cuda, numpy)

    def inside(
        self,
        script: str,
        *args: str,
        timeout_s: float,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_line: OnLine | None = None,
    ) -> Ran:
        if script == "nodes.py":
            known = ({"kind": "node", "path": p, "errno": self.errnos.get(p, 0)} for p in args)
            return lines(*known)
        if script == "look.py":
            return self._look(python or sys.executable)
        environment = self.env if env is None else env
        return self._through_libraries(script, args, timeout_s, environment, on_line)

    def _look(self, python: str) -> Ran:
        """The real script in the real interpreter; once a run, for it takes a while."""
        if python not in _looked:
            plain = {"HOME": "/nonexistent", "PATH": "/nonexistent"}
            _looked[python] = self.real.inside("look.py", timeout_s=60, python=python, env=plain)
        return _looked[python]

    def _through_libraries(
        self,
        script: str,
        args: tuple[str, ...],
        timeout_s: float,
        env: Mapping[str, str],
        on_line: OnLine | None,
    ) -> Ran:
        """Run the real script with a C library in place of the driver's."""
        clean = not _UNCLEAN.intersection(env)
        if self.hangs:
            return cut_short({"kind": "calling", "call": "nvmlInitWithFlags"}, silent_s=timeout_s)
        if script == "nvml.py":
            scenario, name, shown = self.nvml, "libnvidia-ml.so.1", self.nvml_path
            folder = self.standins.nvml()
        else:
            scenario, name, shown = self.cuda, "libcuda.so.1", self.cuda_path
            folder = self.standins.cuda()
            if clean and self.clean_cuda is not None:
                scenario, shown = self.clean_cuda, self.clean_path or shown
        if scenario is None:
            return lines({"kind": "not-loaded", "why": f"{name}: {NO_FILE}"})
        system = f"driver = {self.driver}\nversion = 13.{self.driver}\ncuda = {self.cuda_level}\n"
        played = f"{scenario}\n{system}{self.gpus}"
        ran = _ran.get((script, args, played))
        if ran is None:
            extra = self.standins.environment(played, folder)
            ran = self.real.inside(script, *args, timeout_s=timeout_s, env=extra, on_line=on_line)
            if ran.code == 0:
                _ran[script, args, played] = ran
        elif on_line:
            for line in ran.stdout.splitlines():
                on_line(line)
        real = next(str(path) for path in folder.iterdir() if not path.is_symlink())
        text = ran.stdout.replace(real, shown)
        return msgspec.structs.replace(ran, stdout=text)

    @property
    def nvml_path(self) -> str:
        links = (f"{LIBRARIES}/libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
        return next(
            (self.told.links.get(link, link) for link in links if self.told.stat(link).exists),
            links[0],
        )

    def _is_real(self, path: str) -> bool:
        if self._gone(path) or path in self.told.files or path in self.told.links:
            return False
        if path.startswith(self._open):
            return True
        folder, _, name = path.rpartition("/")
        return path in _LOADER or (folder in _LOADER and _is_library(name))

    def _gone(self, path: str) -> bool:
        return self.hidden.fullmatch(path) is not None

    # --- what makes a machine ------------------------------------------------------------------

    def without(self, *starts: str) -> RawHost:
        """Take away every file, link and node whose path begins so."""
        for known in (self.told.files, self.told.stats, self.told.links, self.told.folders):
            for path in [path for path in known if path.startswith(starts)]:
                del known[path]
        return self

    def on_the_bus(
        self,
        device: str,
        address: str = "0000:a0:00.0",
        driver: str = "nvidia",
        kind: str = "30000",
    ) -> RawHost:
        """A device of NVIDIA's on the PCI bus."""
        self.without(f"{BUS}/{address}/")
        bound = f"DRIVER={driver}\n" if driver else ""
        said = f"{bound}PCI_CLASS={kind}\nPCI_ID=10DE:{device.upper()}\n"
        folder = f"{BUS}/{address}"
        rows = [(0xDE000000, 0xDEFFFFFF, 0x40200), (0x38000000000, 0x383FFFFFFFF, 0x14220C)]
        rows += [(0, 0, 0), (0x38400000000, 0x38401FFFFFF, 0x14220C), (0, 0, 0), (0, 0, 0)]
        self.told.files |= {
            f"{folder}/uevent": f"{said}PCI_SLOT_NAME={address}\n",
            f"{folder}/power_state": "D0\n",
            f"{folder}/config": bytes.fromhex("de10842607001000") + bytes(56),
            f"{folder}/resource": "".join(
                f"0x{a:016x} 0x{b:016x} 0x{c:016x}\n" for a, b, c in rows
            ),
        }
        return self

    def loaded(self, version: str, kind: str = "open") -> RawHost:
        """The module of that release is loaded, and its libraries lie in the loader's folders."""
        words = (
            "UNIX Open Kernel Module for x86_64" if kind == "open" else "UNIX x86_64 Kernel Module"
        )
        line = f"NVRM version: NVIDIA {words}  {version}  Release Build  (dvs-builder@U22-I3)\n"
        rest = "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
        self.told.files["/proc/driver/nvidia/version"] = line + rest
        self.told.files["/sys/module/nvidia/version"] = f"{version}\n"
        self.told.files["/proc/modules"] = modules(*_BUILT_IN)
        self.driver = version
        return self.libraries(version).on_disk(version, kind)

    def unloaded(self) -> RawHost:
        """The module is not in the kernel; NVML and libcuda say so when they are asked."""
        self.without("/proc/driver/nvidia", "/sys/module/nvidia", "/dev/nvidia")
        self.told.files["/proc/modules"] = modules()
        self.nvml, self.cuda = "nvmlInitWithFlags = 9", "cuInit = 100"
        return self

    def libraries(self, version: str) -> RawHost:
        """The driver's libraries of that release, known to the loader."""
        self.without(f"{LIBRARIES}/libcuda", f"{LIBRARIES}/libnvidia")
        for name in ("libcuda", "libnvidia-ml"):
            self.told.files[f"{LIBRARIES}/{name}.so.{version}"] = b"\x7fELF"
            self.told.links[f"{LIBRARIES}/{name}.so.1"] = f"{LIBRARIES}/{name}.so.{version}"
        self.cuda_path = f"{LIBRARIES}/libcuda.so.{version}"
        self.told.files["/etc/ld.so.cache"] = loader_cache(
            {name: f"{LIBRARIES}/{name}" for name in ("libcuda.so.1", "libnvidia-ml.so.1")}
        )
        return self

    def on_disk(self, version: str, kind: str = "open", kernel: str = KERNEL) -> RawHost:
        """The module's file for a kernel, built by DKMS, and the packages of Ubuntu."""
        branch = version.partition(".")[0]
        flavour = "-open" if kind == "open" else ""
        self.without("/lib/modules/", "/var/lib/dkms/")
        built = f"/var/lib/dkms/nvidia/{version}/{kernel}/x86_64"
        self.told.files |= {
            f"/lib/modules/{kernel}/updates/dkms/nvidia.ko.zst": b"(\xb5/\xfd",
            f"/lib/modules/{KERNEL}/modules.dep": "",
            f"{built}/module/nvidia.ko.zst": b"(\xb5/\xfd",
            "/var/lib/dpkg/status": dpkg(
                **{
                    f"nvidia-driver-{branch}{flavour}": f"{version}-0ubuntu1",
                    f"nvidia-dkms-{branch}{flavour}": f"{version}-0ubuntu1",
                    f"libnvidia-compute-{branch}": f"{version}-0ubuntu1",
                }
            ),
        }
        self.told.links[f"/var/lib/dkms/nvidia/kernel-{kernel}-x86_64"] = built
        return self

    def package(self, name: str, version: str) -> RawHost:
        """One more package of the distribution."""
        self.told.files["/var/lib/dpkg/status"] = (
            f"{self.told.files['/var/lib/dpkg/status']!s}{dpkg(**{name: version})}"
        )
        return self

    def not_installed(self) -> RawHost:
        """Nothing of NVIDIA's driver is on this machine."""
        self.unloaded().without(f"{LIBRARIES}/libcuda", f"{LIBRARIES}/libnvidia")
        self.without("/lib/modules/", "/var/lib/dkms/")
        self.told.files[f"/lib/modules/{KERNEL}/modules.dep"] = ""
        self.told.files["/var/lib/dpkg/status"] = dpkg()
        self.told.files["/etc/ld.so.cache"] = loader_cache({"libz.so.1": "/lib/libz.so.1"})
        self.told.programs.pop("nvidia-smi", None)
        self.nvml = self.cuda = None
        return self

    def node(self, path: str, errno: int = 0, mode: int = 0o666, gid: int = 0) -> RawHost:
        """A device node, and what opening it answers."""
        self.told.stats[path] = Stat(exists=True, mode=mode, gid=gid, real=path)
        self.errnos[path] = errno
        return self

    def log(self, *said: str) -> RawHost:
        """The kernel log, as dmesg prints it."""
        text = "".join(f"[{n:5d}.000000] {line}\n" for n, line in enumerate(said, 3))
        self.told.runs[("dmesg",)] = text
        return self

    def smi(self, text: str, code: int = 0) -> RawHost:
        """nvidia-smi prints this, whatever it is asked."""
        self.told.programs["nvidia-smi"] = "/usr/bin/nvidia-smi"
        self.told.otherwise = None
        answer = Ran(code=code, stdout=text)
        self.told.runs |= {("/usr/bin/nvidia-smi",): answer, ("/usr/bin/nvidia-smi", "-L"): answer}
        self.told.otherwise = NOTHING
        from cudadoctor.reports.smi import FULL_QUERY, SMALL_QUERY

        for query in (FULL_QUERY, SMALL_QUERY):
            asked = ("/usr/bin/nvidia-smi", f"--query-gpu={query}", "--format=csv")
            self.told.runs[asked] = answer
        return self

    def in_docker(self, *, granted: bool = True) -> RawHost:
        """A container of Docker's on this machine, with its GPU or without."""
        self.told.stats["/.dockerenv"] = Stat(exists=True, real="/.dockerenv")
        self.without("/lib/modules/", "/var/lib/dkms/", "/sys/firmware/")
        self.told.files["/var/lib/dpkg/status"] = dpkg()
        self.told.programs.pop("dmesg", None)
        if not granted:
            self.without("/dev/nvidia", f"{LIBRARIES}/libcuda", f"{LIBRARIES}/libnvidia")
            self.told.files["/etc/ld.so.cache"] = loader_cache({"libz.so.1": "/lib/libz.so.1"})
            self.told.programs.pop("nvidia-smi", None)
            self.nvml = self.cuda = None
        return self

    def in_wsl(self) -> RawHost:
        """WSL 2 on a Windows with the driver: its device, its libraries, and no bus."""
        self.without("/proc/driver/", "/sys/module/nvidia", "/sys/bus/pci/", "/lib/modules/")
        self.without("/var/lib/dkms/", "/dev/nvidia", f"{LIBRARIES}/libcuda", "/sys/firmware/")
        self.without(f"{LIBRARIES}/libnvidia", "/sys/class/dmi/")
        folder = "/usr/lib/wsl/lib"
        names = ("libcuda.so.1", "libnvidia-ml.so.1", "nvidia-smi")
        self.told.files |= {f"{folder}/{name}": b"\x7fELF" for name in names}
        self.told.files |= {
            "/proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n",
            "/proc/modules": modules(),
            "/var/lib/dpkg/status": dpkg(),
            "/etc/ld.so.cache": loader_cache({name: f"{folder}/{name}" for name in names[:2]}),
        }
        self.told.stats["/dev/dxg"] = Stat(exists=True, mode=0o666, real="/dev/dxg")
        self.told.programs["nvidia-smi"] = f"{folder}/nvidia-smi"
        self.cuda_path = f"{folder}/libcuda.so.1"
        return self

    # --- examined ------------------------------------------------------------------------------

    def machine(self, depth: Literal["fast", "no-smoke"] = "fast") -> Machine:
        """The facts, as all probes together tell them."""
        look = Look(python=self.python, depth=depth)
        return examine_host(self, look, _silent, today="2026-11-21")

    def diagnosed(self, depth: Literal["fast", "no-smoke"] = "fast") -> Diagnosis:
        """What the rules say of this machine, after all probes have looked."""
        return diagnose(self.machine(depth), knowledge.load())


def healthy(standins: StandIns, python: str) -> RawHost:
    """Ubuntu 24.04 with an RTX 4090 and driver 580.95.05, as its files tell."""
    host = RawHost(standins, python)
    host.told.files |= {
        "/etc/os-release": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n',
        "/etc/group": "root:x:0:\nvideo:x:44:\nrender:x:993:\n",
        "/etc/passwd": "ada:x:1000:1000::/home/ada:/bin/bash\n",
        "/proc/sys/kernel/osrelease": f"{KERNEL}\n",
        "/proc/sys/kernel/arch": "x86_64\n",
        "/proc/sys/kernel/hostname": "engine\n",
        "/proc/cmdline": f"BOOT_IMAGE=/vmlinuz-{KERNEL} root=/dev/sda2 ro quiet\n",
        "/proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vme avx2\n",
        "/proc/meminfo": "MemTotal:       65536000 kB\n",
        "/proc/uptime": "3600.00 7000.00\n",
        "/proc/self/status": "Uid:\t1000\t1000\t1000\t1000\nCpus_allowed_list:\t0-15\n",
        "/proc/self/limits": limits(nofile=1048576),
        "/proc/self/mountinfo": "25 1 8:2 / / rw - ext4 /dev/sda2 rw\n",
        "/proc/self/cgroup": "0::/user.slice\n",
        "/proc/1/cgroup": "0::/init.scope\n",
        "/sys/class/dmi/id/product_name": "Z790 AORUS\n",
        SECURE_BOOT: b"\x06\0\0\0\0",
    }
    host.told.folders |= {BUS: (), "/sys/module": (), "/dev": ("null",), "/sys/fs/cgroup": ("x",)}
    host.told.programs |= {"dmesg": "/usr/bin/dmesg", "nvidia-smi": "/usr/bin/nvidia-smi"}
    host.told.programs |= {name: f"/usr/bin/{name}" for name in ("gcc", "g++", "c++")}
    for compiler in ("gcc", "g++", "c++"):
        host.told.runs[f"/usr/bin/{compiler}", "--version"] = f"{compiler} (Ubuntu) 13.3.0\n"
    room = Space(total_bytes=32 * GIB, free_bytes=32 * GIB)
    host.told.spaces |= {"/dev/shm": room, "/tmp": room}
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"):
        host.node(f"/dev/{name}")
    host.log("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
    return host.on_the_bus("2684").loaded("580.95.05")


def _is_library(name: str) -> bool:
    return ".so" in name and _OF_THE_DRIVER.fullmatch(name) is None


def _silent(what: str, going: bool) -> None:
    """Progress that nobody sees."""
