"""What NVML says, asked in a process that can be abandoned.

Prints one JSON line for each thing learnt, and one before each call: where the process hangs or
dies, its last line names the call. argv[1] is the folder that holds the module pynvml, argv[2]
names GPUs that are left out (2,3), since they made an earlier process hang or die.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

TYPE_CHECKING = False  # the module typing would cost a fifth of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answer = tuple[Any, int]

MOST_GPUS = 256
MOST_PROCESSES = 64
MOST_LISTED = 1 << 16
MOST_PAIRED = 16  # 120 pairs of GPUs; what lies between hundreds is no question of one machine
NO_PERMISSION = 4
NOT_FOUND = 6
TOO_SMALL = 7
MISSING = 13  # NVML's "function not found", also used where pynvml itself lacks the function
OWN_ERROR = -1  # no code of NVML: the answer could not even be read
NEXT_WAY = (3, MISSING, 25, OWN_ERROR)

# What the library itself prints must not mix with the lines below.
_OUT = os.dup(1)
os.dup2(2, 1)


def say(kind: str, **rest: Any) -> None:
    os.write(_OUT, (json.dumps({"kind": kind, **rest}) + "\n").encode("ascii"))


class Ask:
    """Calls NVML by name and gives (value, code); a failure is a code, never an exception."""

    module: Any = None
    gpu: int | None = None

    def __init__(self, library: Any) -> None:
        self.library = library

    def announce(self, name: str) -> None:
        """Names the call, and the GPU if it is about one."""
        about = {} if self.gpu is None or "System" in name else {"gpu": self.gpu}
        say("calling", call=name, **about)

    def __call__(self, name: str, *args: Any) -> Answer:
        function = getattr(self.module, name, None)
        if function is None:
            return None, MISSING
        self.announce(name)
        try:
            return function(*args), 0
        except Exception as error:
            if type(error).__name__ == "NVMLLibraryMismatchError":
                return None, MISSING
            code = getattr(error, "value", None)
            return None, code if isinstance(code, int) else OWN_ERROR

    def first(self, ways: str, *args: Any) -> Answer:
        """By the first way that this driver and this pynvml know, newest first: A 1 | B."""
        answer = (None, MISSING)
        for way in ways.split("|"):
            name, *numbers = way.split()
            answer = self(name, *args, *[int(number, 0) for number in numbers])
            if answer[1] not in NEXT_WAY:
                break
        return answer

    def raw(self, name: str, *args: Any) -> int:
        """A function of the library itself, without pynvml."""
        function = getattr(self.library, name, None)
        if function is None:
            return MISSING
        self.announce(name)
        return int(function(*args))

    def words(self, code: int) -> str:
        try:
            return str(self.module.NVMLError(code))
        except Exception:
            return f"code {code}"


def library_names() -> list[str]:
    if sys.platform != "win32":
        return ["libnvidia-ml.so.1"]
    windows = os.environ.get("WINDIR", "C:/Windows")
    programs = os.environ.get("PROGRAMFILES", "C:/Program Files")
    return [windows + "/System32/nvml.dll", programs + "/NVIDIA Corporation/NVSMI/nvml.dll"]


def load() -> Any:
    """The library, None where the loader has none; its own words are printed."""
    why = ""
    for name in library_names():
        say("calling", call="loading " + name)
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            why = why or str(error)
            continue
        say("loaded", path=mapped("libnvidia-ml") or name)
        return library
    say("not-loaded", why=why)
    return None


def mapped(stem: str) -> str | None:
    """The file that the loader really took."""
    try:
        with open("/proc/self/maps", errors="replace") as maps:
            paths = ["/" + line.rstrip("\n").partition("/")[2] for line in maps]
    except OSError:
        return None
    return next((path for path in paths if path.rpartition("/")[2].startswith(stem)), None)


def library_version(ask: Ask) -> None:
    """Needs no nvmlInit, so it is known also where that fails."""
    buffer = ctypes.create_string_buffer(128)
    code = ask.raw("nvmlSystemGetNVMLVersion", buffer, 96)
    report((buffer.value, code), "version", text)


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def start(ask: Ask) -> bool:
    """Init by the newest function that the library has; True where it succeeded."""
    call, code = "nvmlInitWithFlags", ask("nvmlInit")[1]
    for older in ("nvmlInit_v2", "nvmlInit"):
        if code in (MISSING, OWN_ERROR) and getattr(ask.library, older, None) is not None:
            call, code = older, ask.raw(older)
    say("init", call=call, code=code, message=ask.words(code) if code else "")
    return code == 0


def system(ask: Ask) -> int | None:
    """Driver and CUDA version; the number of GPUs is given back, None where that failed."""
    report(ask("nvmlSystemGetDriverVersion"), "driver", text)
    cuda = ask.first("nvmlSystemGetCudaDriverVersion_v2 | nvmlSystemGetCudaDriverVersion")
    report(cuda, "cuda", int)
    call, (count, code) = "nvmlDeviceGetCount_v2", ask("nvmlDeviceGetCount")
    if code == MISSING:
        number, call = ctypes.c_uint(), "nvmlDeviceGetCount"
        code = ask.raw(call, ctypes.byref(number))
        count = number.value
    if code == 0:
        say("system", name="count", value=count)
        return int(count)
    say("no-count", call=call, code=code, message=ask.words(code))
    return None


def report(answer: Answer, name: str, convert: Callable[[Any], Any]) -> None:
    value, code = answer
    say("system", name=name, **({"code": code} if code else {"value": convert(value)}))


def handle(ask: Ask, index: int) -> Any:
    ask.gpu = index
    value, code = ask("nvmlDeviceGetHandleByIndex", index)
    if code == MISSING:
        value = ask.module.c_nvmlDevice_t()
        code = ask.raw("nvmlDeviceGetHandleByIndex", index, ctypes.byref(value))
    say("gpu", index=index, field="handle", code=code, words=ask.words(code) if code else "")
    return value if code == 0 else None


def memory(value: Any) -> dict[str, Any]:
    return {"total": value.total, "used": value.used, "reserved": getattr(value, "reserved", None)}


def processes(ask: Ask, device: Any) -> Answer:
    """A list with absurd entries is one of a struct of another size: the older call is right."""
    code = MISSING
    for form in ("_v3", "_v2"):
        name = "nvmlDeviceGetComputeRunningProcesses" + form
        if too_many(ask, name, device):
            code = OWN_ERROR
            continue
        value, code = ask(name, device)
        if code == 0 and not any(map(absurd, value)):
            return [process(ask, entry) for entry in value[:MOST_PROCESSES]], 0
        if code and code not in NEXT_WAY:
            break
    return None, code or OWN_ERROR


def too_many(ask: Ask, name: str, device: Any) -> bool:
    """Whether the size is garbage: pynvml would reserve memory for as many, until the end of it."""
    size = ctypes.c_uint()
    code = ask.raw(name, device, ctypes.byref(size), None)
    return code in (0, TOO_SMALL) and size.value > MOST_LISTED


def absurd(entry: Any) -> bool:
    used = entry.usedGpuMemory
    return not 0 < entry.pid < 1 << 31 or (used is not None and used > 1 << 44)


def process(ask: Ask, entry: Any) -> dict[str, Any]:
    name, code = ask("nvmlSystemGetProcessName", entry.pid)
    return {
        "pid": entry.pid,
        "name": None if code else text(name),
        "memory": entry.usedGpuMemory,
    }


def mig_devices(ask: Ask, device: Any) -> Answer:
    """There can be holes between the instances, so every index is asked.

    "Not found" is a hole, and so is the instance of somebody else beside one of ours. With any
    other refusal the list is not whole, and what is not in it could be there all the same.
    """
    most, code = ask("nvmlDeviceGetMaxMigDeviceCount", device)
    if code != 0:
        return None, code
    found = []
    fenced = False
    for index in range(min(most, 64)):
        part, code = ask("nvmlDeviceGetMigDeviceHandleByIndex", device, index)
        if code in (NO_PERMISSION, NOT_FOUND):
            fenced = fenced or code == NO_PERMISSION
            continue
        uuid, code = ask("nvmlDeviceGetUUID", part) if code == 0 else (None, code)
        if code != 0:
            return None, code
        found.append(text(uuid))
    return (None, NO_PERMISSION) if fenced and not found else (found, 0)


def fabric(ask: Ask, device: Any) -> Answer:
    info: Any = None
    code = MISSING
    for call, struct in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        made = getattr(ask.module, struct, None)
        info = made() if made else None
        code = ask(call, device, ctypes.byref(info))[1] if info else MISSING
        if code not in NEXT_WAY:
            break
    return (None if code else info.state, code)


def nvlinks(ask: Ask, device: Any) -> Answer:
    """State of each link, in order; a GPU without NVLink refuses the first."""
    states: list[Any] = []
    for link in range(18):
        state, code = ask("nvmlDeviceGetNvLinkState", device, link)
        if code in (2, 3):
            return (states, 0) if states else (None, 3)
        if code != 0:
            return None, code
        states.append(state)
    return states, 0


def settings(ask: Ask) -> None:
    """GPUs that the module leaves out; confidential computing, and whether it takes work yet."""
    report(ask("nvmlGetExcludedDeviceCount"), "excluded", int)
    state, code = ask("nvmlSystemGetConfComputeState")
    report((state, code), "confidential", lambda state: state.ccFeature)
    if code == 0 and state.ccFeature:
        report(ask("nvmlSystemGetConfComputeGpusReadyState"), "confidential_ready", int)


def pairs(ask: Ask, devices: list[tuple[int, Any]]) -> None:
    """What lies between every two GPUs: P2P for reading and writing, over NVLink, the PCI level."""
    if len(devices) > MOST_PAIRED:
        say("no-pairs", count=len(devices))
        return
    for place, (first, device) in enumerate(devices):
        for second, other in devices[place + 1 :]:
            answers = {"read": ask("nvmlDeviceGetP2PStatus", device, other, 0)}
            if answers["read"] == (0, 0):
                answers["write"] = ask("nvmlDeviceGetP2PStatus", device, other, 1)
                answers["nvlink"] = ask("nvmlDeviceGetP2PStatus", device, other, 2)
            answers["level"] = ask("nvmlDeviceGetTopologyCommonAncestor", device, other)
            known = {name: value for name, (value, code) in answers.items() if not code}
            refused = {name: code for name, (_, code) in answers.items() if code}
            say("pair", first=first, second=second, refused=refused, **known)
    say("all-pairs")


# A field, what its value is made of, and the calls that answer, newest first, with their arguments.
IDENTITY = """
name                    text      nvmlDeviceGetName
uuid                    text      nvmlDeviceGetUUID
pci                     pci       nvmlDeviceGetPciInfo_v3 | nvmlDeviceGetPciInfo
capability              list      nvmlDeviceGetCudaComputeCapability
memory                  memory    nvmlDeviceGetMemoryInfo 0x02000028 | nvmlDeviceGetMemoryInfo
mig                     list      nvmlDeviceGetMigMode
"""
STATE = """
compute_mode            plain     nvmlDeviceGetComputeMode
persistence             plain     nvmlDeviceGetPersistenceMode
ecc                     list      nvmlDeviceGetEccMode
ecc_uncorrected         plain     nvmlDeviceGetTotalEccErrors 1 0
ecc_aggregate           plain     nvmlDeviceGetTotalEccErrors 1 1
remap                   list      nvmlDeviceGetRemappedRows
retired_pending         plain     nvmlDeviceGetRetiredPagesPendingStatus
throttle                plain     nvmlDeviceGetCurrentClocksEventReasons \
                                  | nvmlDeviceGetCurrentClocksThrottleReasons
performance_state       plain     nvmlDeviceGetPerformanceState
utilization             gpu       nvmlDeviceGetUtilizationRates
temperature_c           plain     nvmlDeviceGetTemperatureV 0 | nvmlDeviceGetTemperature 0
slowdown_c              plain     nvmlDeviceGetTemperatureThreshold 1
power_w                 plain     nvmlDeviceGetPowerUsage
power_limit_w           plain     nvmlDeviceGetEnforcedPowerLimit
power_default_w         plain     nvmlDeviceGetPowerManagementDefaultLimit
sm_clock_mhz            plain     nvmlDeviceGetClockInfo 1
sm_clock_max_mhz        plain     nvmlDeviceGetMaxClockInfo 1
sm_clock_set_mhz        plain     nvmlDeviceGetApplicationsClock 1
sm_clock_default_mhz    plain     nvmlDeviceGetDefaultApplicationsClock 1
pcie_width              plain     nvmlDeviceGetCurrPcieLinkWidth
pcie_width_max          plain     nvmlDeviceGetMaxPcieLinkWidth
pcie_generation         plain     nvmlDeviceGetCurrPcieLinkGeneration
pcie_generation_max     plain     nvmlDeviceGetMaxPcieLinkGeneration
pcie_generation_gpu_max plain     nvmlDeviceGetGpuMaxPcieLinkGeneration
virtualization          plain     nvmlDeviceGetVirtualizationMode
display                 plain     nvmlDeviceGetDisplayActive
fabric_state            fabric
nvlinks                 nvlinks
processes               processes
"""
MIG = """
mig_devices             mig_devices
"""
VALUES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda value: value,
    "text": text,
    "list": list,
    "pci": lambda value: {"bus": text(value.busId), "id": value.pciDeviceId},
    "memory": memory,
    "gpu": lambda rates: rates.gpu,
}
QUESTIONS = {
    "fabric": fabric,
    "nvlinks": nvlinks,
    "processes": processes,
    "mig_devices": mig_devices,
}


def answered(ask: Ask, device: Any, shape: str, ways: str) -> Answer:
    """What is known of a GPU by one row of the tables above."""
    if shape in QUESTIONS:
        return QUESTIONS[shape](ask, device)
    value, code = ask.first(ways, device)
    try:
        return (None, code) if code else (VALUES[shape](value), 0)
    except Exception:
        return None, OWN_ERROR


def report_fields(ask: Ask, index: int, device: Any, table: str) -> dict[str, Any]:
    """Answer all questions about one GPU; what it answered is given back."""
    known = {}
    ask.gpu = index
    for row in table.strip().splitlines():
        field, shape, *ways = row.split(None, 2)
        value, code = answered(ask, device, shape, *ways or [""])
        if code:
            say("gpu", index=index, field=field, code=code)
        else:
            say("gpu", index=index, field=field, value=value)
            known[field] = value
    return known


def main(folder: str = "", without: str = "") -> None:
    library = load()
    if library is None:
        return
    ask = Ask(library)
    library_version(ask)
    if folder:
        sys.path.append(folder)
    try:
        import pynvml
    except Exception as error:
        say("no-module", why=f"{type(error).__name__}: {error}")
        return
    ask.module = pynvml
    if not start(ask):
        return
    count = system(ask)
    # All identities first: a GPU that hangs later must not hide what the others are.
    identified = []
    for index in range(min(count or 0, MOST_GPUS)):
        if str(index) in without.split(","):
            continue
        device = handle(ask, index)
        if device is not None:
            identified.append((index, device, report_fields(ask, index, device, IDENTITY)))
    for index, device, known in identified:
        has_mig = (known.get("mig") or [0])[0] == 1
        report_fields(ask, index, device, STATE + MIG.lstrip() if has_mig else STATE)
    ask.gpu = None
    if count is not None:
        settings(ask)
    if not without:
        pairs(ask, [(index, device) for index, device, _ in identified])


if __name__ == "__main__":
    main(*sys.argv[1:3])
    say("done")
    # Neither nvmlShutdown nor a destructor of the library: both can hang after a dead GPU.
    os._exit(0)
