/* A stand-in for CUDA's runtime below a real torch: GPUs that compute nothing.
 *
 * It is preloaded, and its functions replace those of libcudart; the texts of errors remain
 * NVIDIA's. Kernels and copies between GPUs do nothing. Environment:
 *
 *   CUDA_FAULTS  words CALL:DEVICE:CODE, such as cudaMalloc:3:214: the call fails with this code
 */

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNUSED __attribute__((unused))
/* A function that does nothing, successfully. */
#define EMPTY(name, ...) cudaError_t name(__VA_ARGS__) { return cudaSuccess; }

static const int count = 8;
static const size_t memory = (size_t)80 << 30;
static __thread int current;
static __thread cudaError_t last;

static cudaError_t result(const char *call, int device) {
    char faults[256], prefix[64], *rest = faults, *word;
    const char *given = getenv("CUDA_FAULTS");
    snprintf(faults, sizeof faults, "%s", given ? given : "");
    int length = snprintf(prefix, sizeof prefix, "%s:%d:", call, device);
    while ((word = strsep(&rest, " ")))
        if (strncmp(word, prefix, length) == 0)
            return last = atoi(word + length);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *number) {
    *number = count;
    return result("cudaGetDeviceCount", 0);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    current = device;
    return result("cudaSetDevice", device);
}

/* In CUDA 12, the header gives it the name that ends with _v2. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "NVIDIA H100 80GB HBM3");
    properties->uuid.bytes[3] = (char)device;
    properties->major = 9;
    properties->totalGlobalMem = memory;
    properties->multiProcessorCount = 132;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    for (int i = 0; i < 3; i++)
        properties->maxGridSize[i] = 65535;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *free = *total = memory;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t size) {
    cudaError_t code = result("cudaMalloc", current);
    if (code == cudaSuccess)
        *pointer = malloc(size);
    return code;
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, UNUSED unsigned flags) {
    *pointer = malloc(size);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(UNUSED const void *function, UNUSED dim3 grid, UNUSED dim3 block,
                             UNUSED void **arguments, UNUSED size_t shared,
                             UNUSED cudaStream_t stream) {
    return result("cudaLaunchKernel", current);
}

/* The form that compilers of CUDA 13 call. */
cudaError_t __cudaLaunchKernel(UNUSED cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(NULL, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(UNUSED const cudaLaunchConfig_t *config,
                                UNUSED const void *function, UNUSED void **arguments) {
    return result("cudaLaunchKernel", current);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t code = last;
    last = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void) { return last; }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size,
                            UNUSED enum cudaMemcpyKind kind, UNUSED cudaStream_t stream) {
    memcpy(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(UNUSED cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(UNUSED cudaStream_t stream,
                                     enum cudaStreamCaptureStatus *status,
                                     UNUSED unsigned long long *id, UNUSED cudaGraph_t *graph,
                                     UNUSED const cudaGraphNode_t **dependencies,
                                     UNUSED const cudaGraphEdgeData **edges,
                                     UNUSED size_t *number) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
#endif

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

EMPTY(cudaFree, UNUSED void *pointer)
EMPTY(cudaMemsetAsync, UNUSED void *to, UNUSED int value, UNUSED size_t size, UNUSED cudaStream_t s)
EMPTY(cudaStreamSynchronize, UNUSED cudaStream_t stream)
EMPTY(cudaDeviceSynchronize, void)
EMPTY(cudaThreadExchangeStreamCaptureMode, UNUSED enum cudaStreamCaptureMode *mode)

/* torch looks these two up in the driver's library, whose name this library has. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = device == current;
    return 0;
}

static int nothing(void) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(UNUSED const char *symbol, void **function,
                                             UNUSED unsigned version,
                                             UNUSED unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
    *(int (**)(void))function = nothing;
    if (status)
        *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
