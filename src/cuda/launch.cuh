// SPDX-License-Identifier: Apache-2.0
// What calls of the runtime share: codes that are checked, launches, and letters to the host.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/memory.h"

namespace addend::cuda {

/// What a call of the runtime returned. An error that is handed over is no longer the thread's:
/// the next launch does not report it again.
inline int taken(cudaError_t code) {
  if (code != cudaSuccess) cudaGetLastError();
  return static_cast<int>(code);
}

/// The error of the launch that came last, if it failed.
inline int launched() { return static_cast<int>(cudaGetLastError()); }

inline int clear(void* memory, uint64_t bytes, void* stream) {
  return taken(cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)));
}

/// Threads of a CTA, and bytes of shared memory beside what its kernel declares.
struct CtaShape {
  CtaShape(int threads_of, uint32_t shared_of = 0) : threads(threads_of), shared(shared_of) {}
  int threads;
  uint32_t shared;
};

/// Lets a kernel have so much shared memory, if it may not yet. It is asked for all that there is:
/// what it may have is the process's, and other threads launch it with less or more.
template <typename Kernel>
inline int allow_shared(Kernel kernel, int device, uint32_t shared) {
  if (shared == 0) return 0;
  cudaFuncAttributes known{};
  if (const int code = taken(cudaFuncGetAttributes(&known, kernel))) return code;
  // The kernel's own variables are out of the same 48 KiB.
  if (static_cast<int>(shared) <= known.maxDynamicSharedSizeBytes) return 0;
  int bytes = 0;
  if (const int code =
          taken(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)))
    return code;
  return taken(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    bytes - static_cast<int>(known.sharedSizeBytes)));
}

/// How many CTAs of each kind run at once, as far as was asked before; 0: never. Steps launch the
/// same few kernels, and asking costs about as much as launching.
struct Residents {
  using Kind = std::tuple<const void*, int, int, uint32_t>;  // kernel, device, threads, shared
  std::mutex mutex;
  std::map<Kind, uint64_t> known;
};
inline Residents& residents() {
  static Residents all;
  return all;
}

/// CTAs that a grid needs to keep every multiprocessor busy, at most `most`.
template <typename Kernel>
inline int fill_device(Kernel kernel, const CtaShape& cta, uint64_t most, uint32_t* ctas) {
  int device = 0, processors = 0, each = 0;
  if (const int code = taken(cudaGetDevice(&device))) return code;
  Residents& all = residents();
  const std::lock_guard<std::mutex> lock(all.mutex);
  uint64_t& known =
      all.known[{reinterpret_cast<const void*>(kernel), device, cta.threads, cta.shared}];
  if (known == 0) {
    if (const int code =
            taken(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)))
      return code;
    if (const int code = allow_shared(kernel, device, cta.shared)) return code;
    if (const int code = taken(
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, cta.threads, cta.shared)))
      return code;
    known = static_cast<uint64_t>(processors) * static_cast<uint64_t>(each);
  }
  *ctas = static_cast<uint32_t>(known < most ? known : most);
  return 0;
}

/// Runs a kernel whose CTAs stride over `work`, so much as one CTA does at a time.
template <typename Kernel, typename... Arguments>
inline int launch(Kernel kernel, const CtaShape& cta, uint64_t work, void* stream,
                  Arguments... arguments) {
  if (work == 0) return 0;
  uint32_t ctas = 0;
  if (const int code = fill_device(kernel, cta, work, &ctas)) return code;
  kernel<<<ctas, cta.threads, cta.shared, static_cast<cudaStream_t>(stream)>>>(arguments...);
  return launched();
}

/// Ends a letter whose numbers are written. By one thread.
__device__ inline void send(Mail* mail, uint64_t sequence) {
  __threadfence_system();
  *const_cast<volatile uint64_t*>(&mail->sequence) = sequence;
}

namespace {

template <typename Number>
__global__ void tell_kernel(const Number* number, Mail* mail, uint64_t sequence) {
  mail->numbers[0] = number == nullptr ? 0 : *number;
  send(mail, sequence);
}

/// Sends a letter with one number, or 0, when the stream is there.
template <typename Number>
int tell(const Number* number, Mail* mail, uint64_t sequence, void* stream) {
  tell_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(number, mail, sequence);
  return launched();
}

}  // namespace
}  // namespace addend::cuda
