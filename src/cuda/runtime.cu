// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime behind RuntimeTable, and the one function that libaddend_cuda.so exports.
#include <cstring>

#include <cuda_runtime.h>

#include "cuda/launch.cuh"
#include "cuda/part.cuh"
#include "cuda/runtime.h"

namespace addend::cuda {

const Part*& Part::first() {
  static const Part* list = nullptr;
  return list;
}

namespace {

static_assert(RuntimeTable::kNotReady == cudaErrorNotReady);

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

const char* error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
bool is_out_of_memory(int code) { return code == cudaErrorMemoryAllocation; }

int device_count(int* count) { return taken(cudaGetDeviceCount(count)); }

int describe(int device, DeviceInfo* info) {
  *info = {};
  cudaDeviceProp found{};
  if (const int code = taken(cudaGetDeviceProperties(&found, device))) return code;
  std::memcpy(info->name, found.name, sizeof(info->name) - 1);  // both end in NUL
  info->memory_bytes = found.totalGlobalMem;
  info->multiprocessors = found.multiProcessorCount;
  info->major = found.major;
  info->minor = found.minor;
  if (const int code = taken(cudaDriverGetVersion(&info->driver))) return code;
  return taken(cudaRuntimeGetVersion(&info->runtime));
}

int stream_device(void* stream, int* device) {
  if (stream == nullptr) return taken(cudaGetDevice(device));
#if CUDART_VERSION >= 12080
  return taken(cudaStreamGetDevice(as_stream(stream), device));
#else
  return taken(cudaGetDevice(device));
#endif
}

int set_device(int device, int* before) {
  if (before != nullptr) {
    if (const int code = taken(cudaGetDevice(before))) return code;
    if (*before == device) return 0;
  }
  return taken(cudaSetDevice(device));
}

int allocate(uint64_t bytes, void** memory) { return taken(cudaMalloc(memory, bytes)); }
int release(void* memory) { return taken(cudaFree(memory)); }

int allocate_pinned(uint64_t bytes, void** host, void** device) {
  if (const int code = taken(cudaHostAlloc(host, bytes, cudaHostAllocMapped))) return code;
  const int code = taken(cudaHostGetDevicePointer(device, *host, 0));
  if (code != 0) taken(cudaFreeHost(*host));
  return code;
}
int release_pinned(void* host) { return taken(cudaFreeHost(host)); }

int copy(void* to, const void* from, uint64_t bytes, void* stream) {
  if (bytes == 0) return 0;
  return taken(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)));
}
int fill(void* memory, int byte, uint64_t bytes, void* stream) {
  if (bytes == 0) return 0;
  return taken(cudaMemsetAsync(memory, byte, bytes, as_stream(stream)));
}

int create_stream(void** stream) {
  return taken(
      cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking));
}
int destroy_stream(void* stream) { return taken(cudaStreamDestroy(as_stream(stream))); }
int synchronize(void* stream) { return taken(cudaStreamSynchronize(as_stream(stream))); }
int query_stream(void* stream) { return taken(cudaStreamQuery(as_stream(stream))); }
int create_event(void** event) {
  return taken(
      cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming));
}
int destroy_event(void* event) { return taken(cudaEventDestroy(as_event(event))); }
int record(void* event, void* stream) {
  return taken(cudaEventRecord(as_event(event), as_stream(stream)));
}
int wait_event(void* stream, void* event) {
  return taken(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
}
int query_event(void* event) { return taken(cudaEventQuery(as_event(event))); }
int synchronize_event(void* event) { return taken(cudaEventSynchronize(as_event(event))); }
int call_host(void* stream, void (*call)(void*), void* argument) {
  return taken(cudaLaunchHostFunc(as_stream(stream), call, argument));
}

constexpr RuntimeTable kRuntime{error_text,      is_out_of_memory,  device_count, describe,
                                stream_device,   set_device,        allocate,     release,
                                allocate_pinned, release_pinned,    copy,         fill,
                                create_stream,   destroy_stream,    synchronize,  query_stream,
                                create_event,    destroy_event,     record,       wait_event,
                                query_event,     synchronize_event, call_host};

}  // namespace

ADDEND_CUDA_PART(RuntimeTable, kRuntime);

}  // namespace addend::cuda

/// The part of this name, version and size, or null.
extern "C" __attribute__((visibility("default"))) const void* addend_cuda(const char* name,
                                                                          uint32_t version,
                                                                          uint64_t bytes) {
  for (const auto* part = addend::cuda::Part::first(); part != nullptr; part = part->next) {
    if (std::strcmp(part->name, name) == 0 && part->version == version && part->bytes == bytes)
      return part->table;
  }
  return nullptr;
}
