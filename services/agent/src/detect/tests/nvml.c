/* A stand-in for NVIDIA's management library, with the functions that the agent calls. What it answers is set when it is
 * compiled: N_GPUS, NAME, MIB, INIT (the answer of nvmlInit_v2), LOST (a GPU that does not answer), MESH (links between
 * GPUs, in two groups of four, instead of links to switches), NO_COUNT (a function is missing), HANGS (nvmlInit_v2 never
 * answers). GPU i is busy for 10 i percent of the time, and i GiB of its memory are used. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef N_GPUS
#define N_GPUS 8
#endif
#ifndef NAME
#define NAME "NVIDIA H100 80GB HBM3"
#endif
#ifndef MIB
#define MIB 81559ull
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef LOST
#define LOST (-1)
#endif

typedef struct {
    unsigned long long total, free, used;
} memory_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;

static int up = 0;

static void at_bus(pci_t *pci, unsigned int bus) {
    memset(pci, 0, sizeof *pci);
    pci->bus = bus;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", bus);
}

/* GPUs 0 to 3 are on the first socket, 4 to 7 on the second. */
static unsigned int bus_of(unsigned long idx) { return (idx < 4 ? 0x18 : 0x88) + 0x11 * (idx % 4); }

int nvmlInit_v2(void) {
#ifdef HANGS
    for (;;) pause();
#endif
    up = INIT == 0;
    return INIT;
}

int nvmlShutdown(void) {
    up = 0;
    return 0;
}

#ifndef NO_COUNT
int nvmlDeviceGetCount_v2(unsigned int *n) {
    *n = N_GPUS;
    return up ? 0 : 1;
}
#endif

int nvmlDeviceGetHandleByIndex_v2(unsigned int idx, void **handle) {
    if (!up || idx >= N_GPUS) return 2;
    if ((int)idx == LOST) return 15;
    *handle = (void *)(unsigned long)(idx + 1);
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci) {
    at_bus(pci, bus_of((unsigned long)handle - 1));
    return 0;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
    (void)handle;
    snprintf(name, length, "%s", NAME);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    memory->total = MIB << 20;
    memory->used = ((unsigned long)handle - 1) << 30;
    memory->free = memory->total - memory->used;
    return 0;
}

typedef struct {
    unsigned int gpu, memory;
} utilization_t;

int nvmlDeviceGetUtilizationRates(void *handle, utilization_t *utilization) {
    utilization->gpu = 10 * ((unsigned long)handle - 1);
    utilization->memory = 1;
    return 0;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, unsigned int *state) {
    (void)handle;
    if (link >= 4) return 3; /* not supported */
    *state = 1;
    return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned int link, pci_t *pci) {
    unsigned long idx = (unsigned long)handle - 1;
#ifdef MESH
    /* Three links to the others of its four, one to its like among the other four. */
    at_bus(pci, link < 3 ? bus_of(idx / 4 * 4 + (idx + link + 1) % 4) : bus_of((idx + 4) % 8));
#else
    (void)idx;
    at_bus(pci, 0xc4 + link);
#endif
    return 0;
}
