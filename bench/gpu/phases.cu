// SPDX-License-Identifier: Apache-2.0
// Times the phases of codecs on a device: each round's encoding and the decoding, by events on the
// stream, for one worker; the union may be that of several. Then folds, a copy to compare them
// with, and how long the host waits for a union's size. Prints one JSON object a line.
// bench/gpu/run.py runs it.
//
//   gpu_phases LOG2_ELEMENTS RUNS [PART_OF_SPEC]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "addend/codec.h"
#include "addend/fold.h"

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
  double density;        // of elements that are not zero
  uint64_t row;          // elements that are zero together
  bool check;            // compared with the CPU's codec, byte for byte
  uint32_t workers = 1;  // of the same density, in the union
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
    {"exact:mode=packed", DType::kF32, 0.05, 1, false, 8},
    {"exact:mode=packed", DType::kF32, 0.01, 1, false},
    {"exact:mode=packed", DType::kF32, 0.3, 1, false},
    {"exact:mode=packed", DType::kBf16, 0.05, 1, false},
    {"exact:mode=two-level", DType::kF32, 0.05, 64, true},
    {"exact:mode=sketch", DType::kF32, 0.05, 1, false},
    {"exact:mode=sketch", DType::kF32, 0.01, 1, false},
    {"exact:mode=packed,values=reproducible", DType::kF32, 0.05, 1, true},
    {"exact:mode=bloom", DType::kF32, 0.001, 1, false},
    {"exact:mode=gather", DType::kF32, 0.01, 1, false},
    {"cast:bf16", DType::kF32, 1, 1, true},
    {"topk:0.01,index=packed", DType::kF32, 1, 1, true},
    {"threshold:0.01,index=packed", DType::kF32, 1, 1, false},
    {"redsync:0.01,index=packed", DType::kF32, 1, 1, false},
    {"dgc:0.01,index=packed", DType::kF32, 1, 1, false},
    {"leader:0.01", DType::kF32, 1, 1, false},
    {"random:0.01", DType::kF32, 1, 1, true},
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

// Reads memory that nobody writes.
__global__ void read_through(const uint4* memory, uint64_t vectors, uint32_t* sink) {
  uint32_t all = 0;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < vectors;
       i += uint64_t{gridDim.x} * blockDim.x)
    all |= memory[i].x;
  if (all == 0xDEADBEEFu) *sink = all;
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
  uint64_t steps = 0;
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

// Sets bits as so many other workers would, each of this density.
__global__ void or_others(uint32_t* bitmap, uint64_t words, uint64_t seed, double density,
                          uint32_t others) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t w = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; w < words; w += stride) {
    uint32_t bits = 0;
    for (uint64_t k = 0; k < 32ull * others; ++k) {
      const uint64_t at = random_at(seed + 2, w * 32 * others + k);
      bits |= static_cast<double>(at >> 11) * 0x1p-53 < density ? 1u << k % 32 : 0u;
    }
    bitmap[w] |= bits;
  }
}

void or_with_others(const Plane& plane, const Case& at, uint64_t seed, cudaStream_t stream) {
  if (plane.op != Op::kOrU64 || at.workers == 1) return;
  or_others<<<1056, 256, 0, stream>>>(static_cast<uint32_t*>(plane.data), plane.lanes * 2, seed,
                                      at.density, at.workers - 1);
  must(cudaGetLastError(), "or_others");
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

// One step of one worker; `planes`, if given, gets the bytes of all planes.
Status step(const Case& at, Codec& codec, void* gradient, Marks* marks,
            std::vector<uint8_t>* planes) {
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
      if (on_device) or_with_others(plane, at, marks == nullptr ? 0 : marks->steps++, stream);
      if (planes == nullptr) continue;
      if (on_device) must(cudaStreamSynchronize(stream), "synchronize");
      const uint64_t bytes = op_bytes(plane.op, plane.lanes), end = planes->size();
      planes->resize(end + bytes);
      must(cudaMemcpy(planes->data() + end, plane.data, bytes, cudaMemcpyDefault), "copy");
    }
    keep_busy();
    mark();
  }
  // The last mark was before the codec had its sums: decoding, and peeling, started there.
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
  if (!cpu || !step(at, **cpu, host.data(), nullptr, &ours)) return false;
  if (!step(at, device, gradient, nullptr, &theirs)) return false;
  must(cudaStreamSynchronize(stream), "synchronize");
  must(cudaMemcpy(back.data(), gradient, bytes, cudaMemcpyDefault), "copy");
  return ours == theirs && host == back;
}

void time_case(const Case& at, uint64_t n, int runs, cudaStream_t stream) {
  std::printf(
      "{\"spec\": \"%s\", \"dtype\": \"%s\", \"density\": %g, \"row\": %llu, "
      "\"workers\": %u",
      at.spec, dtype_name(at.dtype), at.density, static_cast<unsigned long long>(at.row),
      at.workers);
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
  // What making a gradient left in the cache is pushed out, so that no phase has to write it back.
  constexpr uint64_t kFlushed = 256 << 20;
  void* other = nullptr;
  must(cudaMalloc(&other, kFlushed), "malloc");
  must(cudaMemset(other, 0, kFlushed), "memset");
  const auto fresh = [&](uint64_t seed) {
    make_gradient<<<1056, 256, 0, stream>>>(gradient, static_cast<uint8_t>(at.dtype), n, seed,
                                            at.density, at.row);
    read_through<<<1056, 256, 0, stream>>>(static_cast<const uint4*>(other), kFlushed / 16,
                                           static_cast<uint32_t*>(other));
    must(cudaStreamSynchronize(stream), "make_gradient");
  };
  if (at.check) {
    fresh(1);
    std::printf(", \"same_as_cpu\": %s",
                same_as_cpu(at, n, **codec, gradient, stream) ? "true" : "false");
  }
  std::string failed;
  // Clocks of an idle device are low, and rise within a fraction of a second.
  for (int k = 0; k < kClockWarmUp; ++k)
    fresh(2);
  for (int run = 0; run < kWarmUp + runs; ++run) {
    fresh(100 + static_cast<uint64_t>(run));
    const Status done = step(at, **codec, gradient, &marks, nullptr);
    must(cudaStreamSynchronize(stream), "synchronize");
    if (!done) {
      failed = done.error().message;
      break;
    }
    if (run < kWarmUp) continue;
    // A step with a round more has a phase more, which the others went through in no time.
    while (phases.size() < marks.used / 2)
      phases.emplace_back(static_cast<std::size_t>(run - kWarmUp), 0.0);
    for (std::size_t p = 0; p < phases.size(); ++p)
      phases[p].push_back(p < marks.used / 2 ? marks.us(2 * p, 2 * p + 1) : 0.0);
  }
  if (!failed.empty()) std::printf(", \"failed\": \"%s\"", failed.c_str());
  std::printf(", \"bytes\": %llu, \"us\": [", static_cast<unsigned long long>(bytes));
  for (std::size_t p = 0; p < phases.size(); ++p)
    std::printf("%s%.1f", p == 0 ? "" : ", ", median(phases[p]));
  std::printf("], \"wire_bytes\": %llu}\n",
              static_cast<unsigned long long>((*codec)->report().wire_bytes));
  must(cudaFree(gradient), "free");
  must(cudaFree(other), "free");
}

// Median microseconds of what `work` enqueues.
template <typename Work>
double time_work(int runs, cudaStream_t stream, const Work& work) {
  Marks marks(stream);
  std::vector<double> times;
  for (int run = 0; run < kWarmUp + runs; ++run) {
    marks.used = 0;
    spin<<<1, 1, 0, stream>>>(kSpinClocks);
    marks.put();
    work();
    marks.put();
    must(cudaStreamSynchronize(stream), "synchronize");
    if (run >= kWarmUp) times.push_back(marks.us(0, 1));
  }
  return median(times);
}

void must_do(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

// Folds of planes as long as the gradient, two reads and a write, and a copy, a read and a write.
void time_folds(uint64_t n, int runs, cudaStream_t stream) {
  const uint64_t bytes = n * 4;
  void *acc = nullptr, *in = nullptr;
  must(cudaMalloc(&acc, bytes), "malloc");
  must(cudaMalloc(&in, bytes), "malloc");
  make_gradient<<<1056, 256, 0, stream>>>(in, static_cast<uint8_t>(DType::kF32), n, 7, 1, 1);
  make_gradient<<<1056, 256, 0, stream>>>(acc, static_cast<uint8_t>(DType::kF32), n, 8, 1, 1);
  const auto tell = [](const char* what, double moved, double us) {
    std::printf("{\"fold\": \"%s\", \"moved\": %.0f, \"us\": %.1f}\n", what, moved, us);
  };
  const auto total = static_cast<double>(bytes);
  tell("copy", 2 * total, time_work(runs, stream, [&] {
         must(cudaMemcpyAsync(acc, in, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
       }));
  for (const Op op : {Op::kSumF32, Op::kSumBf16, Op::kSumF16, Op::kSumI32, Op::kSumI64, Op::kSumU8,
                      Op::kSumU16, Op::kOrU64, Op::kMaxU32}) {
    const uint64_t lanes = bytes / op_bytes(op, 1);
    tell(op_name(op), 3 * total,
         time_work(runs, stream, [&] { must_do(fold_on_device(op, acc, in, lanes, stream)); }));
  }
  const uint8_t* sources[8];
  for (uint64_t s = 0; s < 8; ++s)
    sources[s] = static_cast<const uint8_t*>(in) + s * (n / 2);
  const uint8_t table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  tell("table_sum_u8 of 8 sources", static_cast<double>(n) * (8 * 0.5 + 2),
       time_work(runs, stream, [&] {
         must_do(fold_tables_on_device(Op::kTableSumU8, acc, sources, 8, table, n, stream));
       }));
  must(cudaFree(acc), "free");
  must(cudaFree(in), "free");
}

// From begin until the host knows how many values a bucket's union has.
void time_host(int runs, cudaStream_t stream) {
  constexpr uint64_t kCount = 6500000;  // 26 MB
  const Case at{"exact:mode=packed", DType::kF32, 0.05, 1, false};
  auto codec = make(at, kCount, {Execution::Device::kCuda, stream});
  void* gradient = nullptr;
  must(cudaMalloc(&gradient, kCount * 4), "malloc");
  std::vector<double> times;
  for (int run = 0; run < kWarmUp + 4 * runs; ++run) {
    make_gradient<<<1056, 256, 0, stream>>>(gradient, static_cast<uint8_t>(at.dtype), kCount,
                                            static_cast<uint64_t>(run), at.density, at.row);
    must(cudaStreamSynchronize(stream), "make_gradient");
    Round round;
    const auto next_round = [&] {
      const Result<bool> more = (*codec)->next_round(round);
      must_do(more ? Status() : Status(more.error()));
    };
    const auto begin = std::chrono::steady_clock::now();
    must_do((*codec)->begin(gradient));
    next_round();
    next_round();
    const auto end = std::chrono::steady_clock::now();
    next_round();  // there is none
    must_do((*codec)->finish(gradient));
    must(cudaStreamSynchronize(stream), "finish");
    if (run >= kWarmUp)
      times.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  std::printf("{\"host\": \"size of a union, bucket of 26 MB\", \"us\": %.1f}\n", median(times));
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
  if (argc > 3) return 0;
  addend::time_folds(uint64_t{1} << std::atoi(argv[1]), std::atoi(argv[2]), stream);
  addend::time_host(std::atoi(argv[2]), stream);
}
