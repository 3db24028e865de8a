/* A stand-in for libnvidia-ml.so.1. The real Python bindings load it; all answers are data.
 *
 * The file NVML_SCENARIO (default: /run/gpus/scenario) has one answer per line, and of several that fit, the last one
 * counts:
 *
 *     FUNCTION GPU ARGUMENT… : CODE VALUE…
 *
 * FUNCTION has no version suffix; "*" fits every function, and every GPU. A line with fewer arguments
 * fits all calls that begin with them. CODE is an NVML return code, or "hang". Functions without a
 * line are "Not Supported". The file is read again when it is replaced, so a scenario can change.
 * "event GPU : 0 TYPE DATA" is an event for the sets with this GPU; a code for "nvmlEventSetWait GPU"
 * is returned to these sets after their events.
 *
 * Layouts and codes: nvml.h of CUDA 13, https://docs.nvidia.com/deploy/nvml-api/
 */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, VERSION = 25, HANG = -1 };
enum { ANY = -1, MAX_ROWS = 8192, MAX_ARGUMENTS = 3, MAX_VALUES = 12, MAX_SETS = 16, MAX_GPUS = 128 };

typedef struct {
    char function[56], text[160];
    int gpu, arguments, code;
    long argument[MAX_ARGUMENTS];
    uint64_t value[MAX_VALUES];
} Row;

static Row *rows;
static int row_count;

static void parse(char *line) {
    char *answer = strstr(line, " : "), *word, *rest = NULL;
    Row *row = &rows[row_count];
    if (!answer || row_count == MAX_ROWS || line[0] == '#') return;
    *answer = 0;
    memset(row, 0, sizeof *row);
    if (!(word = strtok_r(line, " ", &rest))) return;
    snprintf(row->function, sizeof row->function, "%s", word);
    word = strtok_r(NULL, " ", &rest);
    row->gpu = !word || *word == '*' ? ANY : atoi(word);
    while ((word = strtok_r(NULL, " ", &rest)) && row->arguments < MAX_ARGUMENTS)
        row->argument[row->arguments++] = strtol(word, NULL, 0);
    answer += 3;
    answer[strcspn(answer, "\n")] = 0;
    row->code = strncmp(answer, "hang", 4) ? (int)strtol(answer, &answer, 10) : HANG;
    answer += strspn(answer, " ");
    snprintf(row->text, sizeof row->text, "%s", answer);
    for (int i = 0; i < MAX_VALUES && *answer; i++) {
        row->value[i] = *answer == '-' ? (uint64_t)strtoll(answer, NULL, 0) : strtoull(answer, NULL, 0);
        answer += strcspn(answer, " ");
        answer += strspn(answer, " ");
    }
    row_count++;
}

static void refresh(void) {
    static struct stat seen;
    struct stat now;
    const char *path = getenv("NVML_SCENARIO");
    char line[4096];
    if (!path) path = "/run/gpus/scenario";
    if (stat(path, &now)) abort();
    if (rows && now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) abort();
    if (!rows) rows = calloc(MAX_ROWS, sizeof *rows);
    row_count = 0;
    while (fgets(line, sizeof line, file)) parse(line);
    fclose(file);
    seen = now;
}

static const Row *find(const char *function, int gpu, int count, const long *arguments) {
    for (int i = row_count; i-- > 0;) {
        const Row *row = &rows[i];
        if (strcmp(row->function, function) && strcmp(row->function, "*")) continue;
        if (row->gpu != ANY && row->gpu != gpu) continue;
        if (row->arguments > count) continue;
        int fits = 1;
        for (int j = 0; j < row->arguments; j++) fits &= row->argument[j] == arguments[j];
        if (fits) return row;
    }
    return NULL;
}

static int ask(const char *function, int gpu, int count, const long *arguments, const Row **found) {
    refresh();
    const Row *row = find(function, gpu, count, arguments);
    if (found) *found = row;
    if (!row) return UNSUPPORTED;
    while (row->code == HANG) sleep(3600);
    return row->code;
}

/* A handle is the number of the GPU plus one. */
static int number_of(void *gpu) { return (int)(uintptr_t)gpu - 1; }

static int values(const char *function, void *gpu, int count, long first, long second, const Row **row) {
    const long arguments[] = {first, second};
    return ask(function, number_of(gpu), count, arguments, row);
}

#define ONE(name, type, outputs, count, first, second, store) \
    int name outputs { \
        const Row *row; \
        int code = values(#name, gpu, count, first, second, &row); \
        if (code == OK) { store; } \
        return code; \
    }
#define NUMBER(name) ONE(name, unsigned, (void *gpu, unsigned *out), 0, 0, 0, *out = (unsigned)row->value[0])
#define NUMBER_OF(name) ONE(name, unsigned, (void *gpu, unsigned of, unsigned *out), 1, of, 0, *out = (unsigned)row->value[0])
#define WIDE(name) ONE(name, uint64_t, (void *gpu, uint64_t *out), 0, 0, 0, *out = row->value[0])
#define WIDE_OF(name) ONE(name, uint64_t, (void *gpu, unsigned of, unsigned kind, uint64_t *out), 2, of, kind, *out = row->value[0])
#define PAIR(name) ONE(name, unsigned, (void *gpu, unsigned *now, unsigned *later), 0, 0, 0, *now = (unsigned)row->value[0]; *later = (unsigned)row->value[1])
#define WORDS(name) ONE(name, char, (void *gpu, char *out, unsigned size), 0, 0, 0, snprintf(out, size, "%s", row->text))

NUMBER(nvmlDeviceGetPcieReplayCounter)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER(nvmlDeviceGetDefaultEccMode)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetComputeMode)
NUMBER(nvmlDeviceGetPersistenceMode)
NUMBER_OF(nvmlDeviceGetNvLinkState)
NUMBER_OF(nvmlDeviceGetTemperature)
NUMBER_OF(nvmlDeviceGetClockInfo)
NUMBER_OF(nvmlDeviceGetMaxClockInfo)
NUMBER_OF(nvmlDeviceGetApplicationsClock)
NUMBER_OF(nvmlDeviceGetDefaultApplicationsClock)
WIDE(nvmlDeviceGetCurrentClocksEventReasons)
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons)
WIDE_OF(nvmlDeviceGetTotalEccErrors)
WIDE_OF(nvmlDeviceGetNvLinkErrorCounter)
PAIR(nvmlDeviceGetEccMode)
PAIR(nvmlDeviceGetMigMode)
WORDS(nvmlDeviceGetName)
WORDS(nvmlDeviceGetUUID)
WORDS(nvmlDeviceGetSerial)
WORDS(nvmlDeviceGetVbiosVersion)
WORDS(nvmlDeviceGetInforomImageVersion)
WORDS(nvmlDeviceGetBoardPartNumber)

typedef struct { uint64_t reference, violation; } Violation;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { uint64_t total, free, used; } Memory;
typedef struct { unsigned max, high, partial, low, none; } Histogram;
ONE(nvmlDeviceGetViolationStatus, Violation, (void *gpu, unsigned policy, Violation *out), 1, policy, 0, out->reference = 1; out->violation = row->value[0])
ONE(nvmlDeviceGetUtilizationRates, Utilization, (void *gpu, Utilization *out), 0, 0, 0, out->gpu = (unsigned)row->value[0]; out->memory = (unsigned)row->value[1])
ONE(nvmlDeviceGetMemoryInfo, Memory, (void *gpu, Memory *out), 0, 0, 0, out->total = row->value[0]; out->used = row->value[1]; out->free = out->total - out->used)
ONE(nvmlDeviceGetRemappedRows, unsigned, (void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed), 0, 0, 0,
    *corrected = (unsigned)row->value[0]; *uncorrected = (unsigned)row->value[1]; *pending = (unsigned)row->value[2]; *failed = (unsigned)row->value[3])
ONE(nvmlDeviceGetRowRemapperHistogram, Histogram, (void *gpu, Histogram *out), 0, 0, 0,
    out->max = (unsigned)row->value[0]; out->high = (unsigned)row->value[1]; out->partial = (unsigned)row->value[2]; out->low = (unsigned)row->value[3]; out->none = (unsigned)row->value[4])

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *gpu, Pci *out) {
    const Row *row;
    int code = values("nvmlDeviceGetPciInfo", gpu, 0, 0, 0, &row);
    if (code == OK) {
        memset(out, 0, sizeof *out);
        snprintf(out->address, sizeof out->address, "%.31s", row->text);
        sscanf(row->text, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    }
    return code;
}

/* The values of a line are the fabric's state, status, health mask and clique, and the cluster's UUID in hex. */
typedef struct { uint8_t cluster[16]; unsigned status, clique, state; } Fabric;
typedef struct { unsigned version; Fabric fabric; unsigned health; } VersionedFabric;
static void fill(Fabric *out, const Row *row) {
    char hex[33] = "";
    out->state = (unsigned)row->value[0];
    out->status = (unsigned)row->value[1];
    out->clique = (unsigned)row->value[3];
    memset(out->cluster, 0, sizeof out->cluster);
    if (sscanf(row->text, "%*s %*s %*s %*s %32s", hex) == 1)
        for (int i = 0; i < 16; i++) {
            unsigned byte = 0;
            sscanf(hex + 2 * i, "%2x", &byte);
            out->cluster[i] = (uint8_t)byte;
        }
}
int nvmlDeviceGetGpuFabricInfo(void *gpu, Fabric *out) {
    const Row *row;
    int code = values("nvmlDeviceGetGpuFabricInfo", gpu, 0, 0, 0, &row);
    if (code == OK) fill(out, row);
    return code;
}
int nvmlDeviceGetGpuFabricInfoV(void *gpu, VersionedFabric *out) {
    const Row *row;
    int code = values("nvmlDeviceGetGpuFabricInfoV", gpu, 0, 0, 0, &row);
    if (code == OK && out->version != (2u << 24 | sizeof *out)) return VERSION;
    if (code == OK) { fill(&out->fabric, row); out->health = (unsigned)row->value[2]; }
    return code;
}

typedef struct { unsigned version; uint64_t counts[11]; unsigned exceeded; } Sram;
int nvmlDeviceGetSramEccErrorStatus(void *gpu, Sram *out) {
    const Row *row;
    int code = values("nvmlDeviceGetSramEccErrorStatus", gpu, 0, 0, 0, &row);
    if (code == OK && out->version != (1u << 24 | sizeof *out)) return VERSION;
    if (code == OK) {
        memset(out->counts, 0, sizeof out->counts);
        out->exceeded = (unsigned)row->value[0];
        out->counts[2] = out->counts[5] = row->value[1];
    }
    return code;
}

/* The values of a line are the type and the value of a field. */
typedef struct { unsigned field, scope; int64_t time, latency; unsigned type, code; uint64_t value; } Field;
int nvmlDeviceGetFieldValues(void *gpu, int count, Field *fields) {
    int code = values("nvmlDeviceGetFieldValues", gpu, 0, 0, 0, NULL);
    if (code != OK) return code;
    for (int i = 0; i < count; i++) {
        const Row *row;
        fields[i].code = (unsigned)values("nvmlDeviceGetFieldValues", gpu, 2, fields[i].field, fields[i].scope, &row);
        /* The line without a field only says that the function works. */
        if (fields[i].code == OK && row->arguments == 0) fields[i].code = UNSUPPORTED;
        if (fields[i].code == OK) { fields[i].type = (unsigned)row->value[0]; fields[i].value = row->value[1]; }
    }
    return OK;
}

int nvmlDeviceGetRetiredPages(void *gpu, unsigned cause, unsigned *count, uint64_t *pages) {
    const Row *row;
    int code = values("nvmlDeviceGetRetiredPages", gpu, 1, cause, 0, &row);
    if (code != OK) return code;
    unsigned present = (unsigned)row->value[0], room = *count;
    *count = present;
    if (present > room) return SMALL;
    for (unsigned i = 0; pages && i < present; i++) pages[i] = 0x1000 * (i + 1);
    return OK;
}

typedef struct { unsigned pid; uint64_t memory; unsigned instance, compute; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, Process *out) {
    const Row *row;
    int code = values("nvmlDeviceGetComputeRunningProcesses", gpu, 0, 0, 0, &row);
    if (code != OK) return code;
    unsigned present = row->value[0] != 0, room = *count;
    *count = present;
    if (present > room) return SMALL;
    if (present) *out = (Process){(unsigned)row->value[0], row->value[1], ~0u, ~0u};
    return OK;
}
int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    const Row *row;
    const long arguments[] = {pid};
    int code = ask("nvmlSystemGetProcessName", ANY, 1, arguments, &row);
    if (code == OK) snprintf(out, size, "%s", row->text);
    return code;
}

static int words(const char *function, char *out, unsigned size) {
    const Row *row;
    int code = ask(function, ANY, 0, NULL, &row);
    if (code == OK) snprintf(out, size, "%s", row->text);
    return code;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return words("nvmlSystemGetDriverVersion", out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { return words("nvmlSystemGetNVMLVersion", out, size); }
int nvmlSystemGetCudaDriverVersion(int *out) {
    const Row *row;
    int code = ask("nvmlSystemGetCudaDriverVersion", ANY, 0, NULL, &row);
    if (code == OK) *out = (int)row->value[0];
    return code;
}

static int started;
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = ask("nvmlInit", ANY, 0, NULL, NULL);
    started += code == OK;
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return started-- > 0 ? OK : UNINITIALIZED; }
int nvmlDeviceGetCount_v2(unsigned *out) {
    const Row *row;
    int code = started > 0 ? ask("nvmlDeviceGetCount", ANY, 0, NULL, &row) : UNINITIALIZED;
    if (code == OK) *out = (unsigned)row->value[0];
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    unsigned count;
    int code = nvmlDeviceGetCount_v2(&count);
    if (code != OK) return code;
    if (index >= count) return INVALID;
    code = ask("nvmlDeviceGetHandleByIndex", (int)index, 0, NULL, NULL);
    if (code == OK) *out = (void *)(uintptr_t)(index + 1);
    return code;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    char text[96];
    unsigned count;
    int code = nvmlDeviceGetCount_v2(&count);
    for (unsigned i = 0; code == OK && i < count; i++) {
        void *gpu = (void *)(uintptr_t)(i + 1);
        if (nvmlDeviceGetUUID(gpu, text, sizeof text) == OK && !strcmp(text, uuid)) return nvmlDeviceGetHandleByIndex_v2(i, out);
    }
    return code == OK ? NOT_FOUND : code;
}

typedef struct { uint8_t gpus[MAX_GPUS]; int delivered; } Set;
typedef struct { void *gpu; uint64_t type, data; unsigned instance, compute; } Event;
static Set sets[MAX_SETS];
static int set_count;
int nvmlEventSetCreate(void **out) {
    int code = ask("nvmlEventSetCreate", ANY, 0, NULL, NULL);
    if (code == OK) {
        Set *set = &sets[set_count++ % MAX_SETS];
        memset(set, 0, sizeof *set);
        /* A set has only the events that come after it. */
        for (int i = 0; i < row_count; i++) set->delivered += !strcmp(rows[i].function, "event");
        *out = set;
    }
    return code;
}
int nvmlEventSetFree(Set *set) { memset(set, 0, sizeof *set); return OK; }
int nvmlDeviceRegisterEvents(void *gpu, uint64_t types, Set *set) {
    (void)types;
    int code = values("nvmlDeviceRegisterEvents", gpu, 0, 0, 0, NULL);
    if (code == OK) set->gpus[number_of(gpu)] = 1;
    return code;
}
int nvmlEventSetWait_v2(Set *set, Event *out, unsigned milliseconds) {
    /* Shorter than the caller's time, so that tests need not wait. */
    for (unsigned waited = 0; waited <= 50 && waited <= milliseconds; waited += 10) {
        int seen = 0;
        refresh();
        for (int i = 0; i < row_count; i++) {
            const Row *row = &rows[i];
            if (strcmp(row->function, "event") || seen++ < set->delivered) continue;
            set->delivered++;
            if (!set->gpus[row->gpu]) continue;
            *out = (Event){(void *)(uintptr_t)(row->gpu + 1), row->value[0], row->value[1], ~0u, ~0u};
            return OK;
        }
        for (int i = 0; i < MAX_GPUS; i++) {
            int code = set->gpus[i] ? ask("nvmlEventSetWait", i, 0, NULL, NULL) : UNSUPPORTED;
            if (code != OK && code != UNSUPPORTED) return code;
        }
        usleep(10000);
    }
    return TIMEOUT;
}

const char *nvmlErrorString(int code) {
    /* Texts of the driver that the bindings do not have themselves. */
    switch (code) {
    case 19: return "In use by another client";
    case 21: return "No data";
    case 23: return "Insufficient Resources";
    case 25: return "Argument version mismatch";
    case 26: return "Deprecated";
    case 27: return "Not ready";
    case 28: return "No GPUs found";
    case 29: return "Invalid state";
    default: return "Unknown Error";
    }
}
