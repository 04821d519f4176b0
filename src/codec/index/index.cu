// SPDX-License-Identifier: Apache-2.0
// The kernels of an index, launched. docs/algorithms/cuda.md has the bytes that each must move and
// what it reaches.
#include <cuda_runtime.h>

#include "codec/index/bulk_scan.cuh"
#include "codec/index/pack.cuh"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::index {
namespace {

// ---- finite

template <typename T>
__global__ void __launch_bounds__(kPlainThreads)
    nonfinite_kernel(const T* values, uint64_t count, uint32_t infinity, uint64_t* found) {
  constexpr T kMagnitude = static_cast<T>(~T{0}) / 2;
  bool any = false;
  for (uint64_t i = uint64_t{blockIdx.x} * kPlainThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kPlainThreads)
    any |= static_cast<uint32_t>(values[i] & kMagnitude) >= infinity;
  if (__any_sync(kAll, any) && threadIdx.x % 32 == 0)
    *const_cast<volatile uint64_t*>(found) = 1;  // all write the same
}

// ---- launches

// Whether what runs here was compiled with them: code for older devices, translated for this one
// when it was loaded, was not.
template <typename T>
bool has_bulk_copies() {
  cudaFuncAttributes found{};
  return cuda::taken(cudaFuncGetAttributes(&found, bulk_scan_kernel<T>)) == 0 &&
         found.ptxVersion >= 90;
}

template <typename T>
int scan_as(const ScanCall& c, void* stream) {
  const uint64_t tiles = tiles_for(c.width, c.count);
  if (reinterpret_cast<uintptr_t>(c.gradient) % 16 == 0 && has_bulk_copies<T>())
    return cuda::launch(bulk_scan_kernel<T>, {kBulkWarps * 32, kBulkBytes},
                        ceil_div(tiles, kBulkWarps), stream, c);
  return cuda::launch(scan_kernel<T>, {kScanWarps * 32}, ceil_div(tiles, kScanWarps), stream, c);
}

int scan(const ScanCall& c, void* stream) {
  return c.width == 4 ? scan_as<uint32_t>(c, stream) : scan_as<uint16_t>(c, stream);
}

int count(const CountCall& c, void* stream) {
  const auto groups = static_cast<uint32_t>(ceil_div(c.count, kGroupBits));
  count_kernel<<<groups, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(c);
  return cuda::launched();
}

int expand(const ExpandCall& c, void* stream) {
  const uint64_t work =
      ceil_div(tiles_for(dtype_bytes(c.dtype), c.count), kExpandWarps * kExpandBatch);
  return with_type(c.dtype, [&]<DType kType>() {
    return cuda::launch(expand_kernel<kType>, kExpandWarps * 32, work, stream, c);
  });
}

int unpack(const UnpackCall& c, void* stream) {
  const uint64_t work = ceil_div(tiles_for(c.width, c.count), kUnpackWarps);
  return c.width == 4 ? cuda::launch(unpack_kernel<uint32_t>, kUnpackWarps * 32, work, stream, c)
                      : cuda::launch(unpack_kernel<uint16_t>, kUnpackWarps * 32, work, stream, c);
}

int multiply(DType dtype, const void* from, uint64_t count, float factor, void* to, void* stream) {
  if (factor == 1.0f) {
    if (to == from || count == 0) return 0;
    return cuda::taken(cudaMemcpyAsync(to, from, count * dtype_bytes(dtype),
                                       cudaMemcpyDeviceToDevice,
                                       static_cast<cudaStream_t>(stream)));
  }
  return with_type(dtype, [&]<DType kType>() {
    using T = Element<kType>;
    return cuda::launch(multiply_kernel<kType>, kPlainThreads, ceil_div(count, kPlainThreads),
                        stream, static_cast<const T*>(from), count, factor, static_cast<T*>(to));
  });
}

int look_for_nonfinite(DType dtype, const void* values, uint64_t count, uint64_t* scratch,
                       cuda::Mail* mail, uint64_t sequence, void* stream) {
  if (const int code = cuda::clear(scratch, 8, stream)) return code;
  const uint64_t work = ceil_div(count, kPlainThreads);
  const uint32_t infinity = dtype == DType::kF32    ? 0x7F800000u
                            : dtype == DType::kBf16 ? 0x7F80u
                                                    : 0x7C00u;
  const int code =
      dtype == DType::kF32
          ? cuda::launch(nonfinite_kernel<uint32_t>, kPlainThreads, work, stream,
                         static_cast<const uint32_t*>(values), count, infinity, scratch)
          : cuda::launch(nonfinite_kernel<uint16_t>, kPlainThreads, work, stream,
                         static_cast<const uint16_t*>(values), count, infinity, scratch);
  if (code != 0) return code;
  return cuda::tell(scratch, mail, sequence, stream);
}

constexpr IndexKernels kKernels{scan, count, expand, unpack, multiply, look_for_nonfinite};

}  // namespace

ADDEND_CUDA_PART(IndexKernels, kKernels);

}  // namespace addend::index
