// SPDX-License-Identifier: Apache-2.0
// Times the phases of codecs on a device: each round's encoding and the decoding, by events on the
// stream, for a world of one. Prints one JSON object a line. bench/gpu/run.py runs it.
//
//   gpu_phases LOG2_ELEMENTS RUNS [PART_OF_SPEC]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "addend/codec.h"

namespace addend {
namespace {

constexpr int kWarmUp = 5;
constexpr int kClockWarmUp = 400;

void must(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

struct Case {
  const char* spec;
  DType dtype;
  double density;  // of elements that are not zero
  uint64_t row;    // elements that are zero together
  bool check;      // compared with the CPU's codec, byte for byte
};

const Case kCases[] = {
    {"quant:bits=4,carrier=indices", DType::kF32, 1, 1, true},
    {"quant:bits=4", DType::kF32, 1, 1, false},
    {"quant", DType::kF32, 1, 1, false},
    {"quant:bits=4,feedback=float,carrier=indices", DType::kF32, 1, 1, true},
    {"quant:bits=4,feedback=float", DType::kF32, 1, 1, false},
    {"quant:bits=4,feedback=byte", DType::kF32, 1, 1, false},
    {"quant:bits=4,carrier=indices", DType::kBf16, 1, 1, false},
    {"quant:bits=4", DType::kBf16, 1, 1, true},
    {"quant:bits=4", DType::kF16, 1, 1, false},
    {"exact:mode=packed", DType::kF32, 0.05, 1, true},
    {"exact:mode=packed", DType::kF32, 0.01, 1, false},
    {"exact:mode=packed", DType::kF32, 0.3, 1, false},
    {"exact:mode=packed", DType::kBf16, 0.05, 1, false},
    {"exact:mode=two-level", DType::kF32, 0.05, 64, true},
    {"exact:mode=sketch", DType::kF32, 0.05, 1, false},
    {"cast:bf16", DType::kF32, 1, 1, true},
};

__device__ uint64_t random_at(uint64_t seed, uint64_t i) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + i;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

// Sums of four uniform numbers: close enough to normal, and the same on every device.
__device__ float element(uint64_t seed, uint64_t i, double density, uint64_t row) {
  const auto share = static_cast<double>(random_at(seed + 1, i / row) >> 11) * 0x1p-53;
  if (share >= density) return 0;
  const uint64_t bits = random_at(seed, i);
  float sum = 0;
  for (int k = 0; k < 4; ++k)
    sum += static_cast<float>((bits >> (16 * k)) & 0xFFFF) * 0x1p-16f - 0.5f;
  return sum == 0 ? 0.25f : sum;
}

__global__ void make_gradient(void* gradient, uint8_t dtype, uint64_t n, uint64_t seed,
                              double density, uint64_t row) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += stride) {
    const float x = element(seed, i, density, row);
    if (static_cast<DType>(dtype) == DType::kF32) {
      static_cast<float*>(gradient)[i] = x;
    } else if (static_cast<DType>(dtype) == DType::kBf16) {
      static_cast<__nv_bfloat16*>(gradient)[i] = __float2bfloat16_rn(x);
    } else {
      static_cast<__half*>(gradient)[i] = __float2half_rn(x);
    }
  }
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Events at the phases of one step.
struct Marks {
  explicit Marks(cudaStream_t on) : stream(on) {
    for (cudaEvent_t& event : events)
      must(cudaEventCreate(&event), "event");
  }
  void put() { must(cudaEventRecord(events[used++], stream), "record"); }
  double us(std::size_t from, std::size_t to) const {
    float ms = 0;
    must(cudaEventElapsedTime(&ms, events[from], events[to]), "elapsed");
    return static_cast<double>(ms) * 1e3;
  }
  cudaStream_t stream;
  cudaEvent_t events[32];
  std::size_t used = 0;
};

Result<std::unique_ptr<Codec>> make(const Case& at, uint64_t n, Execution execution) {
  Layout layout;
  layout.dtype = at.dtype;
  layout.count = n;
  layout.seed = 5;
  layout.execution = execution;
  return create_codec(*CodecSpec::parse(at.spec), layout);
}

// Keeps the device busy while the host enqueues what is timed behind it: what an event sees is then
// the kernels' time, and not the host's.
constexpr long long kSpinClocks = 600000;
__global__ void spin(long long clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

struct Levels {
  uint8_t of[16];
};

// A table sum over one worker of u8 lanes.
__global__ void look_up(const uint8_t* indices, uint64_t lanes, Levels levels, uint8_t* sums) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < lanes; i += stride)
    sums[i] = levels.of[(indices[i / 2] >> (i % 2 * 4)) & 15];
}

void sum_alone(const Plane& plane, bool on_device, cudaStream_t stream) {
  if (plane.op != Op::kTableSumU8) return;
  Levels levels;
  std::memcpy(levels.of, plane.table, sizeof(levels.of));
  const auto* indices = static_cast<const uint8_t*>(plane.data);
  auto* sums = static_cast<uint8_t*>(plane.sums);
  if (on_device) {
    look_up<<<1056, 256, 0, stream>>>(indices, plane.lanes, levels, sums);
    return must(cudaGetLastError(), "look_up");
  }
  for (uint64_t i = 0; i < plane.lanes; ++i)
    sums[i] = levels.of[(indices[i / 2] >> (i % 2 * 4)) & 15];
}

// One step of a world of one; `planes`, if given, gets the bytes of all planes.
Status step(Codec& codec, void* gradient, Marks* marks, std::vector<uint8_t>* planes) {
  const bool on_device = codec.layout().execution.device == Execution::Device::kCuda;
  auto* stream = static_cast<cudaStream_t>(codec.layout().execution.stream);
  const auto mark = [&] {
    if (marks != nullptr) marks->put();
  };
  const auto keep_busy = [&] {
    if (marks != nullptr) spin<<<1, 1, 0, stream>>>(kSpinClocks);
  };
  if (marks != nullptr) marks->used = 0;
  keep_busy();
  mark();
  ADDEND_TRY(codec.begin(gradient));
  Round round;
  while (true) {
    const Result<bool> more = codec.next_round(round);
    ADDEND_TRY(more);
    if (!*more) break;
    mark();
    for (const Plane& plane : round) {
      sum_alone(plane, on_device, stream);
      if (planes == nullptr) continue;
      if (on_device) must(cudaStreamSynchronize(stream), "synchronize");
      const uint64_t bytes = op_bytes(plane.op, plane.lanes), at = planes->size();
      planes->resize(at + bytes);
      must(cudaMemcpy(planes->data() + at, plane.data, bytes, cudaMemcpyDefault), "copy");
    }
    keep_busy();
    mark();
  }
  // The last mark was before the codec waited for its sums: decoding starts here.
  if (marks != nullptr) --marks->used;
  keep_busy();
  mark();
  ADDEND_TRY(codec.finish(gradient));
  mark();
  return {};
}

// Whether planes and sums are the CPU codec's, byte for byte.
bool same_as_cpu(const Case& at, uint64_t n, Codec& device, void* gradient, cudaStream_t stream) {
  const uint64_t bytes = n * dtype_bytes(at.dtype);
  std::vector<uint8_t> host(bytes), back(bytes), ours, theirs;
  must(cudaMemcpy(host.data(), gradient, bytes, cudaMemcpyDefault), "copy");
  auto cpu = make(at, n, {});
  if (!cpu || !step(**cpu, host.data(), nullptr, &ours)) return false;
  if (!step(device, gradient, nullptr, &theirs)) return false;
  must(cudaStreamSynchronize(stream), "synchronize");
  must(cudaMemcpy(back.data(), gradient, bytes, cudaMemcpyDefault), "copy");
  return ours == theirs && host == back;
}

void time_case(const Case& at, uint64_t n, int runs, cudaStream_t stream) {
  std::printf("{\"spec\": \"%s\", \"dtype\": \"%s\", \"density\": %g, \"row\": %llu", at.spec,
              dtype_name(at.dtype), at.density, static_cast<unsigned long long>(at.row));
  auto codec = make(at, n, {Execution::Device::kCuda, stream});
  if (!codec) {
    std::printf(", \"refused\": \"%s\"}\n", codec.error().message.c_str());
    return;
  }
  const uint64_t bytes = n * dtype_bytes(at.dtype);
  void* gradient = nullptr;
  must(cudaMalloc(&gradient, bytes), "malloc");
  Marks marks(stream);
  std::vector<std::vector<double>> phases;
  const auto fresh = [&](uint64_t seed) {
    make_gradient<<<1056, 256, 0, stream>>>(gradient, static_cast<uint8_t>(at.dtype), n, seed,
                                            at.density, at.row);
    must(cudaStreamSynchronize(stream), "make_gradient");
  };
  if (at.check) {
    fresh(1);
    std::printf(", \"same_as_cpu\": %s",
                same_as_cpu(at, n, **codec, gradient, stream) ? "true" : "false");
  }
  // Clocks of an idle device are low, and rise within a fraction of a second.
  for (int k = 0; k < kClockWarmUp; ++k)
    fresh(2);
  for (int run = 0; run < kWarmUp + runs; ++run) {
    fresh(100 + static_cast<uint64_t>(run));
    const Status done = step(**codec, gradient, &marks, nullptr);
    must(cudaStreamSynchronize(stream), "synchronize");
    if (!done) {
      std::printf(", \"failed\": \"%s\"}\n", done.error().message.c_str());
      break;
    }
    if (run < kWarmUp) continue;
    phases.resize(marks.used / 2);
    for (std::size_t p = 0; p < phases.size(); ++p)
      phases[p].push_back(marks.us(2 * p, 2 * p + 1));
  }
  std::printf(", \"bytes\": %llu, \"us\": [", static_cast<unsigned long long>(bytes));
  for (std::size_t p = 0; p < phases.size(); ++p)
    std::printf("%s%.1f", p == 0 ? "" : ", ", median(phases[p]));
  std::printf("], \"wire_bytes\": %llu}\n",
              static_cast<unsigned long long>((*codec)->report().wire_bytes));
  must(cudaFree(gradient), "free");
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: gpu_phases LOG2_ELEMENTS RUNS [PART_OF_SPEC]\n");
    return 2;
  }
  cudaStream_t stream = nullptr;
  addend::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  for (const addend::Case& at : addend::kCases) {
    if (argc > 3 && std::strstr(at.spec, argv[3]) == nullptr) continue;
    addend::time_case(at, uint64_t{1} << std::atoi(argv[1]), std::atoi(argv[2]), stream);
    std::fflush(stdout);
  }
}
