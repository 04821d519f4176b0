// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/perf_rank.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "apps/addend/codecs.h"
#include "apps/addend/page_buffer.h"
#include "apps/addend/worker.h"
#include "apps/workload/check.h"

namespace addend::cli {

namespace {

/// One rank at one size: its gradient and the buffer that is all-reduced.
class SizeRun {
 public:
  SizeRun(Reducer& reducer, const PerfPlan& plan, uint64_t bytes)
      : reducer_(reducer), plan_(plan), gradient_(plan.gradient), bytes_(bytes) {
    gradient_.world = reducer.world();
    gradient_.count = bytes / dtype_bytes(gradient_.dtype);
    bytes_ = gradient_.count * dtype_bytes(gradient_.dtype);
  }

  Status prepare() {
    auto source = PageBuffer::create(bytes_);
    if (!source) return source.error();
    auto work = PageBuffer::create(bytes_);
    if (!work) return work.error();
    source_ = *std::move(source);
    work_ = *std::move(work);
    generate(gradient_, {reducer_.worker(), 0}, {0, gradient_.count}, source_.data());
    return {};
  }

  Result<PerfRow> measure(const CodecSpec& spec) {
    auto layouts = make_layouts();
    if (!layouts) return layouts.error();
    auto worker = Worker::create(reducer_, spec, *layouts, plan_.threads);
    if (!worker) return worker.error();
    std::vector<float> times;
    // Of the reducer that does the steps: a fallback may have other float sums.
    const auto tolerated = tolerance(spec, reducer_, gradient_.dtype);
    ADDEND_TRY(iterate(**worker, times));
    (*worker)->close();
    ADDEND_TRY(reduce_max(reducer_, times));
    workload::SumCheck check = check_result();
    auto wrong = count_wrong(check, tolerated);
    if (!wrong) return wrong.error();
    std::array<float, 1> nmse{static_cast<float>(check.nmse())};
    ADDEND_TRY(reduce_max(reducer_, nmse));

    const Report& report = (*worker)->codec(0).report();
    PerfRow row = make_row(median({times.begin(), times.end()}));
    row.mean_us = std::accumulate(times.begin(), times.end(), 0.0) / plan_.iterations;
    row.codec = spec.to_string();
    row.mode = report.mode;
    row.fallback = report.fallback;
    row.rounds = report.rounds;
    for (std::size_t p = 0; p < (*worker)->buckets(); ++p)
      row.wire_bytes += (*worker)->codec(p).report().wire_bytes;
    row.union_density = gradient_.count == 0 ? 0
                                             : static_cast<double>(check.union_nonzeros) /
                                                   static_cast<double>(gradient_.count);
    row.nmse = static_cast<double>(nmse[0]);
    row.wrong = *wrong;
    return row;
  }

 private:
  Result<std::vector<Layout>> make_layouts() const {
    Layout layout;
    layout.dtype = gradient_.dtype;
    layout.count = gradient_.count;
    layout.world = reducer_.world();
    layout.seed = gradient_.seed;
    layout.network = plan_.network;
    if (plan_.piece_bytes == 0) return std::vector<Layout>{layout};
    return cut_into_pieces(layout, plan_.piece_bytes);
  }

  Status iterate(Worker& worker, std::vector<float>& times) {
    for (uint32_t i = 0; i < plan_.warmup + plan_.iterations; ++i) {
      std::memcpy(work_.data(), source_.data(), bytes_);
      std::vector<void*> pieces;
      char* at = static_cast<char*>(work_.data());
      for (std::size_t p = 0; p < worker.buckets(); ++p) {
        pieces.push_back(at);
        at += worker.codec(p).layout().count * dtype_bytes(gradient_.dtype);
      }
      ADDEND_TRY(worker.barrier());
      const double start = now_us();
      ADDEND_TRY(worker.all_reduce(pieces));
      if (i >= plan_.warmup) times.push_back(static_cast<float>(now_us() - start));
    }
    return {};
  }

  /// Draws the others' gradients again, piece by piece, instead of asking for them. Workers may be
  /// threads of this process, each of which does so: what they hold meanwhile grows with their
  /// number, not with its square.
  workload::SumCheck check_result() const {
    const uint32_t element = dtype_bytes(gradient_.dtype);
    const uint64_t most = workload::check_piece(gradient_.dtype, gradient_.world, gradient_.count);
    std::vector<std::vector<uint64_t>> pieces(gradient_.world);
    std::vector<const void*> inputs;
    for (auto& piece : pieces) {
      piece.resize((most * element + sizeof(uint64_t) - 1) / sizeof(uint64_t));
      inputs.push_back(piece.data());
    }
    workload::SumCheck total;
    for (uint64_t first = 0; first < gradient_.count; first += most) {
      const uint64_t count = std::min(most, gradient_.count - first);
      for (uint32_t worker = 0; worker < gradient_.world; ++worker) {
        generate(gradient_, {worker, 0}, {first, count}, pieces[worker].data());
      }
      const char* sum = static_cast<const char*>(work_.data()) + first * element;
      total.merge(workload::check_sum(gradient_.dtype, inputs, sum, count, first));
    }
    return total;
  }

  /// Over all ranks. A lossy codec that gives ranks different answers lets their models drift
  /// apart: then nothing it gave is right.
  Result<uint64_t> count_wrong(const workload::SumCheck& check,
                               const workload::Tolerance& tolerance) {
    auto equal =
        all_equal(reducer_, workload::digest(gradient_.dtype, work_.data(), gradient_.count));
    if (!equal) return equal.error();
    uint64_t mine = check.wrong_within(tolerance);
    if (tolerance.lossy && !*equal) mine = gradient_.count;
    std::array<int64_t, 1> wrong{static_cast<int64_t>(mine)};
    ADDEND_TRY(reduce_sum(reducer_, wrong));
    return static_cast<uint64_t>(wrong[0]);
  }

  PerfRow make_row(double time_us) const {
    PerfRow row;
    const double n = reducer_.world();
    row.bytes = bytes_;
    row.count = gradient_.count;
    row.time_us = time_us;
    row.algbw = time_us > 0 ? static_cast<double>(bytes_) / time_us * 1e-3 : 0;
    row.busbw = row.algbw * 2 * (n - 1) / n;
    return row;
  }

  Reducer& reducer_;
  const PerfPlan& plan_;
  workload::GradientSpec gradient_;
  uint64_t bytes_;
  PageBuffer source_;
  PageBuffer work_;
};

}  // namespace

Status run_perf_rank(Reducer& reducer, const PerfPlan& plan,
                     const std::function<void(const PerfRow&)>& emit) {
  const CodecSpec dense_spec{"dense", {}};
  for (uint64_t bytes : plan.sizes) {
    SizeRun run(reducer, plan, bytes);
    ADDEND_TRY(run.prepare());
    // Dense is always measured, asked for or not: it is what every other line is held against.
    auto dense = run.measure(dense_spec);
    if (!dense) return dense.error();
    for (const CodecSpec& spec : plan.codecs) {
      const bool is_dense = spec.to_string() == dense_spec.to_string();
      auto row = is_dense ? dense : run.measure(spec);
      if (!row) return row.error();
      row->vs_dense = row->time_us > 0 ? dense->time_us / row->time_us : 0;
      emit(*row);
    }
  }
  return {};
}

}  // namespace addend::cli
