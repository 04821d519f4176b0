// SPDX-License-Identifier: Apache-2.0
// The quantised codec against memcpy: one of eight workers, one thread, and the adder that sums the
// eight workers' indices.
//
// All workers hold the same gradient, so round 0 (the largest norms) needs no reduction and one
// worker's memory is enough. Their thresholds differ as they would, and so do their levels.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "addend/codec.h"
#include "addend/fold.h"
#include "apps/addend/bench.h"
#include "apps/addend/page_buffer.h"
#include "apps/addend/worker.h"
#include "apps/workload/check.h"
#include "apps/workload/gradient.h"

namespace addend::cli {

namespace {

constexpr uint32_t kWorld = 8;
constexpr double kBits = 4;
constexpr double kLeastTableRate = 1.5;
constexpr double kLeastNarrowRate = 0.5;  // added in 16 bits, and rounded once more
constexpr double kMostScaleBits = 0.02;
// An adder works on a piece of all planes while its sums are in the nearest cache.
constexpr uint64_t kPieceLanes = 1 << 14;

constexpr std::string_view kTableSum = "quant table sum";
constexpr std::string_view kNarrowSum = "quant narrow sum";

/// A subject and what it promises: times in units of memcpy, and the error of the sum of 8 workers
/// with equal gradients.
struct Subject {
  const char* name;
  const char* codec;
  double max_encode_x;
  double max_decode_x;
  double most_nmse;
};
constexpr Subject kLevels{"quant levels", "quant:bits=4", 2.5, 2.5, 0.0006};
// The limits below, but for decoding indices, were set after measuring: guards, not promises. They
// leave room for AVX2, and for a machine that is not quiet. Indices take two levels' bits together
// besides what levels take; eight bits choose among levels that are evenly spaced.
constexpr Subject kIndices{"quant indices", "quant:carrier=indices", 4, 2.5, 0.0006};
constexpr Subject kNarrow{"quant narrow", "quant:bits=8,down=8", 4, 5, 0.0006};
// Fewer bits.
constexpr Subject kFewBits[] = {
    {"quant narrow 1 bit", "quant:bits=1,down=4", 5, 3, 0.1},
    {"quant narrow 2 bits", "quant:bits=2,down=4", 4, 3, 0.03},
    {"quant narrow 3 bits", "quant:bits=3,down=4", 4, 3, 0.02},
    {"quant narrow 4 bits", "quant:bits=4,down=4", 4, 3, 0.02},
};

/// Where the sum over all workers stands, or the levels if they are summed in place.
void* sums_of(const Plane& plane) { return is_table_sum(plane.op) ? plane.sums : plane.data; }

class QuantBench {
 public:
  static Result<QuantBench> create(const BenchOptions& options) {
    QuantBench bench(options);
    const uint64_t bytes = options.count * sizeof(float);
    for (PageBuffer* buffer : {&bench.gradient_, &bench.copy_}) {
      auto pages = PageBuffer::create(bytes);
      if (!pages) return pages.error();
      *buffer = *std::move(pages);
    }
    auto planes = PageBuffer::create(kWorld * bench.stride());
    if (!planes) return planes.error();
    bench.planes_ = *std::move(planes);
    workload::GradientSpec spec;
    spec.count = options.count;
    spec.density = 1;
    spec.seed = options.seed;
    generate(spec, {0, 0}, {0, spec.count}, bench.gradient_.data());
    std::memcpy(bench.copy_.data(), bench.gradient_.data(), bytes);
    return bench;
  }

  Status run(const Subject& subject, BenchResults& results) {
    fmt::print(stderr, "bench: {}\n", subject.name);
    ADDEND_TRY(add_workers(subject));
    auto codec = make_codec(subject, 0);
    if (!codec) return codec.error();
    auto start = (*codec)->save_state();
    if (!start) return start.error();
    auto nmse = check(**codec, subject);
    if (!nmse) return nmse.error();
    auto line = measure(**codec, *start, subject);
    if (!line) return line.error();
    add_bars(subject, *line, *nmse, results.bars);
    results.codecs.push_back(*std::move(line));
    return {};
  }

  /// An adder gets a piece of every worker's plane, sums it and goes on to the next piece. Network
  /// cards put what arrives into the cache, and there the bar holds; from memory is shown beside
  /// it. REQUIRES: run(kIndices) went before.
  Status run_table_sum(BenchResults& results) {
    return run_sum(kTableSum, kLeastTableRate, results);
  }
  /// The same for narrow sums. REQUIRES: run(kNarrow) went before.
  Status run_narrow_sum(BenchResults& results) {
    return run_sum(kNarrowSum, kLeastNarrowRate, results);
  }

 private:
  explicit QuantBench(const BenchOptions& options) : options_(options) {}

  Status run_sum(std::string_view name, double least_rate, BenchResults& results) {
    fmt::print(stderr, "bench: {}\n", name);
    std::vector<uint8_t> sums(sums_.size());
    for (uint64_t first = 0; first < lanes_; first += kPieceLanes)
      sum_piece(first, first, sums.data());
    if (sums != sums_) {
      return make_error(Errc::kUndecodable,
                        fmt::format("{}: sums by pieces are not the sums of planes", name));
    }
    auto cached = race_sum(name, Source::kCache, sums.data());
    if (!cached) return cached.error();
    results.bars.push_back({fmt::format("{}: index bytes/s / memcpy", cached->op), cached->rate_x,
                            least_rate, false, true});
    results.folds.push_back(*std::move(cached));
    auto streamed = race_sum(name, Source::kMemory, sums.data());
    if (!streamed) return streamed.error();
    results.folds.push_back(*std::move(streamed));
    return {};
  }

  Result<std::unique_ptr<Codec>> make_codec(const Subject& subject, uint32_t worker) const {
    auto spec = CodecSpec::parse(subject.codec);
    if (!spec) return spec.error();
    Layout layout;
    layout.count = options_.count;
    layout.world = kWorld;
    layout.worker = worker;
    layout.seed = options_.seed;
    return create_codec(*spec, layout);
  }

  /// Encodes both rounds; leaves the second in `round`.
  Status encode(Codec& codec, Round& round) const {
    ADDEND_TRY(codec.begin(gradient_.data()));
    for (int i = 0; i < 2; ++i) {
      auto more = codec.next_round(round);
      if (!more) return more.error();
      if (!*more || (i == 1 && round.size != 2)) {
        return make_error(Errc::kUnsupported, "quant did not open the rounds it is known for");
      }
    }
    return {};
  }

  /// The sum of all workers' first step into sums_. Levels and indices must give the same integers.
  Status add_workers(const Subject& subject) {
    for (uint32_t worker = 0; worker < kWorld; ++worker) {
      auto codec = make_codec(subject, worker);
      if (!codec) return codec.error();
      Round round;
      ADDEND_TRY(encode(**codec, round));
      const Plane& plane = round.planes[0];
      op_ = plane.op;
      if (op_ != Op::kSumU8 && op_ != Op::kTableSumU8 && !is_narrow_sum(op_)) {
        return make_error(Errc::kUnsupported, fmt::format("{} sums in {} instead of 8-bit lanes",
                                                          subject.name, op_name(op_)));
      }
      lanes_ = plane.lanes;
      if (op_table_bytes(op_) > 0) std::memcpy(table_.data(), plane.table, table_.size());
      std::memcpy(lanes_of(worker), plane.data, op_bytes(op_, lanes_));
    }
    std::vector<uint8_t> sums(op_sum_bytes(op_, lanes_));
    for (uint32_t worker = 0; op_ == Op::kSumU8 && worker < kWorld; ++worker)
      fold(op_, sums.data(), lanes_of(worker), lanes_);
    if (is_table_sum(op_)) fold_all(0, 0, lanes_, sums.data());
    if (!is_narrow_sum(op_) && !sums_.empty() && sums != sums_) {
      return make_error(Errc::kUndecodable, fmt::format("{} sums to other integers than {}",
                                                        kIndices.name, kLevels.name));
    }
    sums_ = std::move(sums);
    return {};
  }

  /// Worker 0's step with the sums of all; only its own work is timed.
  Result<Laps> step(Codec& codec, void* target) const {
    Round round;
    const double start = now_us();
    ADDEND_TRY(encode(codec, round));
    const double encoded = now_us();
    std::memcpy(sums_of(round.planes[0]), sums_.data(), sums_.size());
    *static_cast<uint32_t*>(round.planes[1].data) = kWorld;
    const double reduced = now_us();
    auto more = codec.next_round(round);
    if (!more) return more.error();
    ADDEND_TRY(codec.finish(target));
    return Laps{encoded - start, now_us() - reduced};
  }

  /// Decodes over garbage, so that a decoder which leaves holes is found.
  Result<double> check(Codec& codec, const Subject& subject) const {
    std::memset(copy_.data(), 0xa5, copy_.bytes());
    ADDEND_TRY(step(codec, copy_.data()));
    const std::vector<const void*> inputs(kWorld, gradient_.data());
    const workload::SumCheck sum =
        workload::check_sum(DType::kF32, inputs, copy_.data(), options_.count);
    const double nmse = sum.nmse();
    if (nmse <= subject.most_nmse && sum.spread == 0) return nmse;
    return make_error(Errc::kUndecodable, fmt::format("{}: NMSE {:g} instead of at most {:g}",
                                                      subject.name, nmse, subject.most_nmse));
  }

  /// Every step is the first one again: the sums belong to it.
  Result<CodecLine> measure(Codec& codec, const std::vector<uint8_t>& first_step,
                            const Subject& subject) const {
    // Decoding goes to the copy: memcpy has filled it, and workers must not see the gradient
    // change.
    auto result = race({gradient_.data(), copy_.data(), gradient_.bytes()}, options_.repeats,
                       [&]() -> Result<Laps> {
                         ADDEND_TRY(codec.load_state(first_step));
                         return step(codec, copy_.data());
                       });
    if (!result) return result.error();
    CodecLine line = codec_line(codec.report(), *result);
    line.subject = subject.name;
    line.codec = subject.codec;
    return line;
  }

  void add_bars(const Subject& subject, const CodecLine& line, double nmse,
                std::vector<Bar>& bars) const {
    const auto add = [&](const char* part, double value, double limit) {
      bars.push_back(
          {fmt::format("{}: {} time / memcpy", subject.name, part), value, limit, true, true});
    };
    add("encode", line.encode_x, subject.max_encode_x);
    add("decode", line.decode_x, subject.max_decode_x);
    bars.push_back({fmt::format("{}: NMSE, {} equal gradients", subject.name, kWorld), nmse,
                    subject.most_nmse});
    if (subject.codec != std::string_view(kIndices.codec)) return;
    bars.push_back({fmt::format("{}: bits on the wire / value", subject.name),
                    8 * static_cast<double>(line.wire_bytes) / static_cast<double>(options_.count),
                    kBits + kMostScaleBits});
  }

  /// Where the workers' indices come from: the same pieces again and again, or whole planes.
  enum class Source : uint8_t { kCache, kMemory };

  /// Sums `lanes` of the workers' lanes from `first` on to lane `to` of `sums`.
  void fold_all(uint64_t first, uint64_t to, uint64_t lanes, uint8_t* sums) const {
    uint8_t* target = sums + op_sum_bytes(op_, to);
    std::memset(target, 0, op_sum_bytes(op_, lanes));
    std::array<const uint8_t*, kWorld> sources{};
    for (uint32_t worker = 0; worker < kWorld; ++worker)
      sources[worker] = lanes_of(worker) + op_bytes(op_, first);
    fold_tables(op_, target, sources.data(), kWorld, table_.data(), lanes);
  }

  /// A piece of at most kPieceLanes.
  void sum_piece(uint64_t first, uint64_t to, uint8_t* sums) const {
    fold_all(first, to, std::min(kPieceLanes, lanes_ - std::max(first, to)), sums);
  }

  /// In index bytes, as many as there are in all planes.
  Result<FoldLine> race_sum(std::string_view name, Source source, uint8_t* sums) const {
    const bool cached = source == Source::kCache;
    auto result = race({gradient_.data(), copy_.data(), gradient_.bytes()}, options_.repeats,
                       [&]() -> Result<Laps> {
                         const double start = now_us();
                         for (uint64_t first = 0; first < lanes_; first += kPieceLanes)
                           sum_piece(cached ? 0 : first, cached ? 0 : first, sums);
                         return Laps{now_us() - start, 0};
                       });
    if (!result) return result.error();
    const double bytes = static_cast<double>(op_bytes(op_, lanes_)) * kWorld;
    const double copied = static_cast<double>(gradient_.bytes());
    FoldLine line;
    line.op =
        fmt::format("{} of {} workers, {}", name, kWorld, cached ? "in cache" : "from memory");
    line.memcpy_gb_per_s = copied / result->memcpy_us * 1e-3;
    line.fold_gb_per_s = bytes / result->subject.first_us * 1e-3;
    line.rate_x = bytes / copied / result->first_x;
    return line;
  }

  uint8_t* lanes_of(uint32_t worker) const {
    return static_cast<uint8_t*>(planes_.data()) + worker * stride();
  }
  // Planes that are a power of two apart would fight for the same cache lines.
  uint64_t stride() const { return options_.count + kPieceLanes + 64; }

  BenchOptions options_;
  PageBuffer gradient_;
  PageBuffer copy_;
  Op op_ = Op::kSumU8;  ///< of the subject that ran last
  uint64_t lanes_ = 0;
  std::vector<uint8_t> sums_;  ///< of all workers, first step
  PageBuffer planes_;          ///< one plane a worker
  std::array<uint8_t, 16> table_{};
};

}  // namespace

Status bench_quant(const BenchOptions& options, BenchResults& results) {
  const bool levels = options.wants(kLevels.name), indices = options.wants(kIndices.name);
  const bool table_sum = options.wants(std::string(kTableSum));
  const bool narrow = options.wants(kNarrow.name);
  const bool narrow_sum = options.wants(std::string(kNarrowSum));
  const bool few_bits = std::any_of(std::begin(kFewBits), std::end(kFewBits),
                                    [&](const auto& one) { return options.wants(one.name); });
  if (!levels && !indices && !table_sum && !narrow && !narrow_sum && !few_bits) return {};
  auto bench = QuantBench::create(options);
  if (!bench) return bench.error();
  if (levels) ADDEND_TRY(bench->run(kLevels, results));
  if (indices || table_sum) ADDEND_TRY(bench->run(kIndices, results));
  if (table_sum) ADDEND_TRY(bench->run_table_sum(results));
  if (narrow || narrow_sum) ADDEND_TRY(bench->run(kNarrow, results));
  if (narrow_sum) ADDEND_TRY(bench->run_narrow_sum(results));
  for (const Subject& subject : kFewBits) {
    if (options.wants(subject.name)) ADDEND_TRY(bench->run(subject, results));
  }
  return {};
}

}  // namespace addend::cli
