/* A stand-in for libcuda.so.1, driven by a scenario file (scenario.h). */
#include "scenario.h"

#define DOES do { int code = act(-1, __func__); if (code) return code; } while (0)

/* 999 only while LD_LIBRARY_PATH is set, as with a stale copy that comes first there. */
int cuInit(unsigned int flags) {
    (void)flags;
    DOES;
    const char *folder = getenv("LD_LIBRARY_PATH");
    const char *dirty = find("cuInit_with_LD_LIBRARY_PATH");
    return dirty && folder && *folder ? (int)strtol(dirty, NULL, 0) : 0;
}
int cuDriverGetVersion(int *to) {
    DOES;
    *to = (int)number_of(-1, "cuda", 13000);
    return 0;
}
int cuDeviceGetCount(int *to) {
    DOES;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *to = visible && !strcmp(visible, "-1") ? 0 : (int)number_of(-1, "count", 1);
    return 0;
}
