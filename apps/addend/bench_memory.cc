// SPDX-License-Identifier: Apache-2.0
// Memory that a packed all-reduce needs beyond the gradients, as the codec states it and as the
// kernel saw it.
#include <algorithm>
#include <array>
#include <fstream>

#include <fmt/format.h>

#include "apps/addend/bench.h"
#include "apps/addend/machine.h"
#include "apps/addend/page_buffer.h"
#include "apps/addend/worker.h"
#include "apps/workload/gradient.h"

namespace addend::cli {

namespace {

constexpr uint32_t kWorld = 2;
constexpr double kLimit = 1.5;  // times the dense gradient

struct Extra {
  double stated = 0;  ///< by the codec, times dense
  double seen = 0;    ///< by the kernel, pipeline and reducer included, times dense
};

uint64_t resident_bytes(const char* name) { return read_proc_kib("/proc/self/status", name); }

/// Lets the kernel's high-water mark start again from here; false where it does not offer that.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.flush();
  return file.good();
}

/// Of one worker; worker 0 also watches the process.
class Observer {
 public:
  Observer(Reducer& reducer, const workload::GradientSpec& spec) : reducer_(reducer), spec_(spec) {}

  Result<Extra> run() {
    const uint64_t bytes = spec_.count * sizeof(float);
    auto gradient = PageBuffer::create(bytes);
    if (!gradient) return gradient.error();
    generate(spec_, {reducer_.worker(), 0}, {0, spec_.count}, gradient->data());
    ADDEND_TRY(meet());
    if (reducer_.worker() == 0) {
      peak_known_ = reset_peak();
      before_ = resident_bytes("VmRSS");
    }
    ADDEND_TRY(meet());
    return step(gradient->data(), static_cast<double>(bytes));
  }

 private:
  Status meet() {
    std::array<int64_t, 1> nothing{};
    return reduce_sum(reducer_, nothing);
  }

  Result<Extra> step(void* gradient, double dense) {
    Layout layout;
    layout.count = spec_.count;
    layout.world = kWorld;
    layout.seed = spec_.seed;
    auto worker = Worker::create(reducer_, {"exact", {{"mode", "packed"}}}, {&layout, 1});
    if (!worker) return worker.error();
    ADDEND_TRY((*worker)->all_reduce({&gradient, 1}));
    Extra extra;
    extra.stated = static_cast<double>((*worker)->codec(0).memory_bytes()) / dense;
    ADDEND_TRY((*worker)->barrier());
    if (reducer_.worker() == 0) {
      const uint64_t after = resident_bytes(peak_known_ ? "VmHWM" : "VmRSS");
      extra.seen = static_cast<double>(after - std::min(after, before_)) / (kWorld * dense);
    }
    ADDEND_TRY((*worker)->barrier());
    return extra;
  }

  Reducer& reducer_;
  workload::GradientSpec spec_;
  bool peak_known_ = false;
  uint64_t before_ = 0;
};

Result<Extra> measure(const workload::GradientSpec& spec) {
  Extra worst;
  ADDEND_TRY(run_workers(kWorld, [&](Reducer& reducer) -> Status {
    auto extra = Observer(reducer, spec).run();
    if (!extra) return extra.error();
    if (reducer.worker() == 0) worst = *extra;
    return {};
  }));
  return worst;
}

}  // namespace

Status bench_memory(const BenchOptions& options, BenchResults& results) {
  for (double density : {0.05, 1.0}) {
    const std::string name = fmt::format("packed {:g} %: extra memory / dense", density * 100);
    if (!options.wants(name)) continue;
    fmt::print(stderr, "bench: {}\n", name);
    workload::GradientSpec spec;
    // Large enough that rounding to whole huge pages does not show.
    spec.count = std::clamp(options.count, uint64_t{1} << 24, uint64_t{1} << 25);
    spec.density = density;
    spec.world = kWorld;
    spec.seed = options.seed;
    auto extra = measure(spec);
    if (!extra) return extra.error();
    results.bars.push_back({name + ", stated by the codec", extra->stated, kLimit});
    results.bars.push_back({name + ", resident peak", extra->seen, kLimit});
  }
  return {};
}

}  // namespace addend::cli
