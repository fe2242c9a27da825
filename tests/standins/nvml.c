/* A stand-in for libnvidia-ml.so.1, driven by a scenario file (scenario.h).

   -DR450: a driver of that branch, without what came later.
   -DANCIENT: also without the _v2 and _v3 forms and nvmlInitWithFlags. */
#include "scenario.h"

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
typedef struct { u32 pid; u64 used; u32 gpu_instance, compute_instance; } process_v2;
typedef struct { u32 gpu, memory; } rates;
typedef struct {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
} pci;
typedef struct { u32 version, sensor; int temperature; } temperature_v1;
typedef struct {
    unsigned char cluster[16];
    int status;
    u32 clique;
    unsigned char state;
} fabric_v1;
typedef struct {
    u32 version;
    unsigned char cluster[16];
    int status;
    u32 clique;
    unsigned char state;
    u32 health;
} fabric_v2;

enum { NOT_FOUND = 6, NOT_SUPPORTED = 3, SMALL = 7, VERSION_MISMATCH = 25 };

#define GPU(handle) ((int)(long)(handle) - 1)
#define DOES(gpu) do { int code = act(gpu, __func__); if (code) return code; } while (0)

static int put(char *to, u32 size, const char *text) {
    if (garbage == 4) { memset(to, 'A', size); return 0; }
    if (strlen(text) >= size) return SMALL;
    strcpy(to, text);
    return 0;
}

#ifndef ANCIENT
int nvmlInitWithFlags(u32 flags) { (void)flags; DOES(-1); return 0; }
#endif
int nvmlInit_v2(void) { DOES(-1); return 0; }
int nvmlInit(void) { DOES(-1); return 0; }
int nvmlShutdown(void) { DOES(-1); return 0; }

const char *nvmlErrorString(int code) {
    static char words[48];
    snprintf(words, sizeof words, "stand-in error %d", code);
    return words;
}

int nvmlSystemGetNVMLVersion(char *to, u32 size) {
    DOES(-1);
    return put(to, size, text_of(-1, "version", "13.580.95.05"));
}
int nvmlSystemGetDriverVersion(char *to, u32 size) {
    DOES(-1);
    return put(to, size, text_of(-1, "driver", "580.95.05"));
}
static int cuda(int *to) { *to = (int)number_of(-1, "cuda", 13000); return 0; }
int nvmlSystemGetCudaDriverVersion(int *to) { DOES(-1); return cuda(to); }
#ifndef ANCIENT
int nvmlSystemGetCudaDriverVersion_v2(int *to) { DOES(-1); return cuda(to); }
#endif
int nvmlSystemGetProcessName(u32 pid, char *to, u32 size) {
    DOES(-1);
    (void)pid;
    return put(to, size, text_of(-1, "process", "/usr/bin/python3"));
}

static int count(u32 *to) { *to = (u32)number_of(-1, "count", 1); return 0; }
static int handle(u32 index, void **to) { *to = (void *)(long)(index + 1); return 0; }
#ifdef ANCIENT
int nvmlDeviceGetCount(u32 *to) { DOES(-1); return count(to); }
int nvmlDeviceGetHandleByIndex(u32 index, void **to) { DOES((int)index); return handle(index, to); }
#else
int nvmlDeviceGetCount_v2(u32 *to) { DOES(-1); return count(to); }
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **to) {
    DOES((int)index);
    return handle(index, to);
}
#endif

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **to) {
    u32 domain = 0, slot = 0;
    DOES(-1);
    if (sscanf(bus, "%x:%x", &domain, &slot) != 2 || slot < 0xA0) return NOT_FOUND;
    return handle(slot - 0xA0, to);
}

int nvmlDeviceGetName(void *d, char *to, u32 size) {
    DOES(GPU(d));
    return put(to, size, text_of(GPU(d), "name", "NVIDIA H100 80GB HBM3"));
}
int nvmlDeviceGetUUID(void *d, char *to, u32 size) {
    char uuid[64];
    DOES(GPU(d));
    snprintf(uuid, sizeof uuid, "GPU-%08x-1111-2222-3333-444444444444", GPU(d));
    return put(to, size, text_of(GPU(d), "uuid", uuid));
}
static int describe(void *d, pci *to) {
    memset(to, 0, sizeof *to);
    to->id = (u32)number_of(GPU(d), "pci_id", 0x233010de);
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", GPU(d) + 0xA0);
    return 0;
}
#ifndef ANCIENT
int nvmlDeviceGetPciInfo_v3(void *d, pci *to) { DOES(GPU(d)); return describe(d, to); }
#endif
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
    DOES(GPU(d));
    int both = (int)number_of(GPU(d), "capability", 90);
    *major = both / 10;
    *minor = both % 10;
    return 0;
}

#define TOTAL(d) ((u64)number_of(GPU(d), "memory", 85520809984LL))
#define USED(d) ((u64)number_of(GPU(d), "used", 419430400LL))
int nvmlDeviceGetMemoryInfo(void *d, memory_v1 *to) {
    DOES(GPU(d));
    *to = (memory_v1){TOTAL(d), TOTAL(d) - USED(d), USED(d)};
    return 0;
}
#ifndef R450
int nvmlDeviceGetMemoryInfo_v2(void *d, memory_v2 *to) {
    DOES(GPU(d));
    if (to->version != 0x02000028) return VERSION_MISMATCH;
    *to = (memory_v2){to->version, TOTAL(d), 314572800, TOTAL(d) - USED(d), USED(d)};
    return 0;
}
#endif

/* Questions with one number: the usual answer of a healthy H100. */
#define ASK(function, key, usual) \
    int function(void *d, u32 *to) { \
        DOES(GPU(d)); \
        *to = (u32)number_of(GPU(d), key, usual); \
        return 0; \
    }
ASK(nvmlDeviceGetComputeMode, "compute_mode", 0)
ASK(nvmlDeviceGetPersistenceMode, "persistence", 1)
ASK(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending", 0)
ASK(nvmlDeviceGetPerformanceState, "performance_state", 0)
ASK(nvmlDeviceGetPowerUsage, "power", 70000)
ASK(nvmlDeviceGetEnforcedPowerLimit, "power_limit", 700000)
ASK(nvmlDeviceGetPowerManagementDefaultLimit, "power_default", 700000)
ASK(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
ASK(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)
ASK(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", 5)
ASK(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", 5)
#ifndef R450
ASK(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation_gpu_max", 5)
#endif
ASK(nvmlDeviceGetVirtualizationMode, "virtualization", 0)
ASK(nvmlDeviceGetDisplayActive, "display", 0)
ASK(nvmlDeviceGetMaxMigDeviceCount, "mig_most", 7)

#define ASK_LONG(function, key, usual) \
    int function(void *d, u64 *to) { \
        DOES(GPU(d)); \
        *to = (u64)number_of(GPU(d), key, usual); \
        return 0; \
    }
ASK_LONG(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle", 1)
#ifndef R450
ASK_LONG(nvmlDeviceGetCurrentClocksEventReasons, "throttle", 1)
#endif

static int pair(void *d, const char *key, u32 *now, u32 *pending) {
    char later[64];
    snprintf(later, sizeof later, "%s_pending", key);
    *now = (u32)number_of(GPU(d), key, !strcmp(key, "ecc"));
    *pending = (u32)number_of(GPU(d), later, *now);
    return 0;
}
int nvmlDeviceGetEccMode(void *d, u32 *now, u32 *pending) {
    DOES(GPU(d));
    return pair(d, "ecc", now, pending);
}
int nvmlDeviceGetMigMode(void *d, u32 *now, u32 *pending) {
    DOES(GPU(d));
    return pair(d, "mig", now, pending);
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, u32 index, void **to) {
    DOES(GPU(d));
    if ((long long)index >= number_of(GPU(d), "mig_devices", 0)) return NOT_FOUND;
    *to = (void *)(long)(GPU(d) * 100 + (long)index + 1001);
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *d, u32 type, u32 counter, u64 *to) {
    DOES(GPU(d));
    (void)type;
    *to = (u64)number_of(GPU(d), counter ? "ecc_aggregate" : "ecc_uncorrected", 0);
    return 0;
}
int nvmlDeviceGetRemappedRows(void *d, u32 *corrected, u32 *un, u32 *pending, u32 *failure) {
    DOES(GPU(d));
    *corrected = (u32)number_of(GPU(d), "remap_corrected", 0);
    *un = (u32)number_of(GPU(d), "remap_uncorrected", 0);
    *pending = (u32)number_of(GPU(d), "remap_pending", 0);
    *failure = (u32)number_of(GPU(d), "remap_failed", 0);
    return 0;
}
int nvmlDeviceGetPcieReplayCounter(void *d, u32 *to) {
    DOES(GPU(d));
    *to = (u32)number_of(GPU(d), "pcie_replays", 0);
    return 0;
}
int nvmlDeviceGetNvLinkErrorCounter(void *d, u32 link, u32 counter, u64 *to) {
    DOES(GPU(d));
    if (link >= (u32)number_of(GPU(d), "nvlinks", 0)) return 2;
    *to = (u64)number_of(GPU(d), "nvlink_errors", 0) + counter;
    return 0;
}
int nvmlDeviceGetPcieThroughput(void *d, u32 counter, u32 *to) {
    DOES(GPU(d));
    *to = (u32)number_of(GPU(d), counter ? "pcie_rx" : "pcie_tx", 0);
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *d, rates *to) {
    DOES(GPU(d));
    *to = (rates){(u32)number_of(GPU(d), "utilization", 0), 0};
    return 0;
}
int nvmlDeviceGetTemperature(void *d, u32 sensor, u32 *to) {
    DOES(GPU(d));
    (void)sensor;
    *to = (u32)number_of(GPU(d), "temperature", 38);
    return 0;
}
#ifndef R450
int nvmlDeviceGetTemperatureV(void *d, temperature_v1 *to) {
    DOES(GPU(d));
    to->temperature = (int)number_of(GPU(d), "temperature", 38);
    return 0;
}
#endif
int nvmlDeviceGetTemperatureThreshold(void *d, u32 which, u32 *to) {
    DOES(GPU(d));
    (void)which;
    *to = (u32)number_of(GPU(d), "slowdown", 90);
    return 0;
}
int nvmlDeviceGetClockInfo(void *d, u32 which, u32 *to) {
    DOES(GPU(d));
    (void)which;
    *to = (u32)number_of(GPU(d), "sm_clock", 1980);
    return 0;
}
int nvmlDeviceGetMaxClockInfo(void *d, u32 which, u32 *to) {
    DOES(GPU(d));
    (void)which;
    *to = (u32)number_of(GPU(d), "sm_clock_max", 1980);
    return 0;
}
int nvmlDeviceGetApplicationsClock(void *d, u32 which, u32 *to) {
    DOES(GPU(d));
    (void)which;
    *to = (u32)number_of(GPU(d), "sm_clock_set", 1980);
    return 0;
}
int nvmlDeviceGetDefaultApplicationsClock(void *d, u32 which, u32 *to) {
    DOES(GPU(d));
    (void)which;
    *to = (u32)number_of(GPU(d), "sm_clock_default", 1980);
    return 0;
}
int nvmlDeviceGetNvLinkState(void *d, u32 link, u32 *to) {
    DOES(GPU(d));
    if ((long long)link >= number_of(GPU(d), "nvlinks", 18)) return NOT_SUPPORTED;
    *to = (long long)link >= number_of(GPU(d), "nvlinks_down", 0);
    return 0;
}
/* Between two GPUs: p2p is the status of reading, p2p_write and p2p_nvlink those of the others. */
int nvmlDeviceGetP2PStatus(void *d, void *other, u32 index, u32 *to) {
    static const char *const keys[] = {"p2p", "p2p_write", "p2p_nvlink"};
    DOES(GPU(d));
    (void)other;
    *to = (u32)number_of(GPU(d), keys[index % 3], 0);
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void *d, void *other, u32 *to) {
    DOES(GPU(d));
    (void)other;
    *to = (u32)number_of(GPU(d), "topology", 40);
    return 0;
}
#ifndef R450
int nvmlGetExcludedDeviceCount(u32 *to) {
    DOES(-1);
    *to = (u32)number_of(-1, "excluded", 0);
    return 0;
}
int nvmlSystemGetConfComputeState(u32 *to) {
    DOES(-1);
    to[0] = 0;
    to[1] = (u32)number_of(-1, "confidential", 0);
    to[2] = 0;
    return 0;
}
int nvmlSystemGetConfComputeGpusReadyState(u32 *to) {
    DOES(-1);
    *to = (u32)number_of(-1, "confidential_ready", 1);
    return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void *d, fabric_v2 *to) {
    DOES(GPU(d));
    if (to->version != 0x02000024) return VERSION_MISMATCH;
    to->state = (unsigned char)number_of(GPU(d), "fabric_state", 3);
    return 0;
}
int nvmlDeviceGetGpuFabricInfo(void *d, fabric_v1 *to) {
    DOES(GPU(d));
    to->state = (unsigned char)number_of(GPU(d), "fabric_state", 3);
    return 0;
}

static int list(void *d, const char *key, u32 *size, process_v2 *to) {
    u32 have = (u32)number_of(GPU(d), key, 0);
    u32 room = *size;
    *size = have;
    if (!have) return 0;
    if (room < have) return SMALL;
    for (u32 i = 0; i < have; i++)
        to[i] = (process_v2){(u32)number_of(GPU(d), "pid", 4242) + i, 1ULL << 30, ~0u, ~0u};
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *d, u32 *size, process_v2 *to) {
    DOES(GPU(d));
    return list(d, "processes", size, to);
}
/* An early 535 driver writes larger entries here, so that pids are read from sizes. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, u32 *size, process_v2 *to) {
    DOES(GPU(d));
    int code = list(d, "processes", size, to);
    if (!code && to && number_of(GPU(d), "larger_processes", 0))
        for (u32 i = 1; i < *size; i++) to[i].pid = 0, to[i].used = ~0ULL - 7;
    return code;
}
#endif
