// SPDX-License-Identifier: Apache-2.0
// Codecs against memcpy: one worker, one thread or several. In a world of one the reduction is the
// identity, so a step is all codec.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "addend/codec.h"
#include "addend/threads.h"
#include "apps/addend/bench.h"
#include "apps/addend/page_buffer.h"
#include "apps/addend/worker.h"
#include "apps/workload/check.h"
#include "apps/workload/gradient.h"

namespace addend::cli {

namespace {

struct Pattern {
  double density = 0.05;
  uint64_t row = 1;
};

constexpr uint32_t kAllRounds = Report::kMaxRounds;

/// A subject, the mode it must run in, and the times it promises, 0 where it promises none.
/// Promised before there was code: packed, and the sketch. All other times were set after they had
/// been measured, with room for AVX2 and slower memory: guards against getting slower.
struct Subject {
  const char* name;
  const char* codec;
  std::string_view mode;
  Pattern pattern;
  /// Opening these rounds is encoding. A sketch is peeled when it is asked for one more: that is
  /// decoding. The second factor of low rank is made of the sum of the first, and counts there,
  /// too.
  uint32_t encode_rounds = kAllRounds;
  double max_encode_x = 0;
  double max_decode_x = 0;
  double max_total_x = 0;
  /// A codec that rounds the gradient beforehand, so that the subject can give it back.
  const char* rounded_by = nullptr;
  double most_nmse = 0;  ///< of a lossy subject, which leaves zeros alone
  bool square = false;   ///< the gradient is one matrix, about as wide as high
};

constexpr Subject kSubjects[] = {
    {"dense", "dense", "dense", {0.05, 1}},
    {"cast bf16", "cast:bf16", "cast", {1.0, 1}, kAllRounds, 0, 0, 3.0, "cast:bf16"},
    {"cast f16", "cast:f16", "cast", {1.0, 1}, kAllRounds, 0, 0, 3.0, "cast:f16"},
    {"cast bf16 feedback",
     "cast:bf16,feedback=float",
     "cast",
     {1.0, 1},
     kAllRounds,
     0,
     0,
     5.5,
     "cast:bf16"},
    {"quant", "quant", "quant", {1.0, 1}, kAllRounds, 0, 0, 5.0, nullptr, 0.03},
    {"quant feedback",
     "quant:feedback=float",
     "quant",
     {1.0, 1},
     kAllRounds,
     0,
     0,
     7.0,
     nullptr,
     0.03},
    {"quant ahead",
     "quant:feedback=float,norms=ahead",
     "quant",
     {1.0, 1},
     kAllRounds,
     0,
     0,
     7.0,
     nullptr,
     0.03},
    {"quant packed 5 %",
     "quant:index=packed",
     "quant",
     {0.05, 1},
     kAllRounds,
     0,
     0,
     4.5,
     nullptr,
     0.03},
    {"quant two-level rows",
     "quant:index=two-level",
     "quant",
     {0.05, 64},
     kAllRounds,
     0,
     0,
     4.5,
     nullptr,
     0.03},
    {"lowrank 1",
     "lowrank:rank=1",
     "lowrank",
     {1.0, 1},
     1,
     0,
     0,
     7.5,
     "lowrank:rank=1",
     1e-8,
     true},
    {"lowrank 4",
     "lowrank:rank=4",
     "lowrank",
     {1.0, 1},
     1,
     0,
     0,
     10.0,
     "lowrank:rank=4",
     1e-8,
     true},
    {"lowrank 8",
     "lowrank:rank=8",
     "lowrank",
     {1.0, 1},
     1,
     0,
     0,
     18.0,
     "lowrank:rank=8",
     1e-8,
     true},
    {"lowrank 4 bf16 factors",
     "lowrank:rank=4,factors=bf16",
     "lowrank",
     {1.0, 1},
     1,
     0,
     0,
     10.0,
     "lowrank:rank=4",
     1e-4,
     true},
    {"lowrank 4 quant factors",
     "lowrank:rank=4,factors=quant",
     "lowrank",
     {1.0, 1},
     1,
     0,
     0,
     10.0,
     "lowrank:rank=4",
     0.03,
     true},
    {"topk 1 %", "topk:density=0.01", "topk", {1.0, 1}, kAllRounds, 0, 0, 4.0, nullptr, 0.95},
    {"threshold 1 %",
     "threshold:density=0.01",
     "threshold",
     {1.0, 1},
     kAllRounds,
     0,
     0,
     4.0,
     nullptr,
     0.95},
    {"random 1 %", "random:density=0.01", "random", {1.0, 1}, kAllRounds, 0, 0, 3.0, nullptr, 1.05},
    {"leader 1 %", "leader:density=0.01", "leader", {1.0, 1}, kAllRounds, 0, 0, 3.5, nullptr, 0.95},
    {"packed 5 %", "exact:mode=packed", "packed", {0.05, 1}, kAllRounds, 0, 0, 2.0},
    {"packed 1 %", "exact:mode=packed", "packed", {0.01, 1}, kAllRounds, 0, 0, 1.5},
    {"packed 100 %", "exact:mode=packed", "packed", {1.0, 1}},
    {"two-level rows", "exact:mode=two-level", "two-level", {0.05, 64}},
    {"bloom 1 %", "exact:mode=bloom", "bloom", {0.01, 1}, kAllRounds, 0, 0, 3.0},
    {"bloom 0.1 %", "exact:mode=bloom", "bloom", {0.001, 1}, kAllRounds, 0, 0, 2.0},
    {"gather rows 1 %", "exact:mode=gather", "gather", {0.01, 16}, kAllRounds, 0, 0, 2.5},
    {"sketch 5 %", "exact:mode=sketch", "sketch", {0.05, 1}, 1, 4.0, 8.0, 0},
    {"reproducible 5 %", "exact:mode=packed,values=reproducible", "packed", {0.05, 1}},
    {"sketch reproducible", "exact:mode=sketch,values=reproducible", "sketch", {0.05, 1}, 2},
};

/// What encoding and decoding may take with 2 and with 4 threads, where there are so many cores:
/// guards, too.
struct Threaded {
  std::string_view subject;
  std::array<double, 2> max_total_x;
};
constexpr Threaded kThreaded[] = {
    {"cast bf16", {2.0, 1.2}},  {"quant", {2.7, 1.5}},          {"quant feedback", {5.5, 3.0}},
    {"packed 5 %", {1.3, 0.8}}, {"two-level rows", {0.6, 0.4}}, {"lowrank 1", {4.5, 2.5}},
    {"lowrank 4", {6.0, 3.5}},  {"lowrank 8", {10.0, 5.5}},
};

constexpr Subject kMillion{"sketch with a million non-zeros", "exact:mode=sketch", "sketch", {}, 1};

/// The gradient under test and the target of memcpy, shared by all subjects of one size.
class Bench {
 public:
  static Result<Bench> create(const BenchOptions& options) {
    Bench bench(options);
    for (PageBuffer* buffer : {&bench.gradient_, &bench.copy_}) {
      auto pages = PageBuffer::create(options.count * sizeof(float));
      if (!pages) return pages.error();
      *buffer = *std::move(pages);
    }
    return bench;
  }

  void draw(const Pattern& pattern) {
    workload::GradientSpec spec;
    spec.count = options_.count;
    spec.density = pattern.density;
    spec.row = pattern.row;
    spec.seed = options_.seed;
    generate(spec, {0, 0}, {0, spec.count}, gradient_.data());
    const auto* values = static_cast<const float*>(gradient_.data());
    nonzeros_ =
        options_.count - static_cast<uint64_t>(std::count(values, values + options_.count, 0.0f));
  }

  Result<std::unique_ptr<Codec>> make_codec(const char* text, bool square = false) const {
    auto spec = CodecSpec::parse(text);
    if (!spec) return spec.error();
    Layout layout;
    layout.count = options_.count;
    layout.seed = options_.seed;
    if (square) {
      const auto side = static_cast<uint64_t>(std::sqrt(static_cast<double>(options_.count)));
      layout.segments = {{1, side * side, side}, {2, options_.count - side * side}};
    }
    return create_codec(*spec, layout);
  }

  /// One step; a world of one gives the gradient back.
  Result<Laps> step(Codec& codec, void* target, uint32_t encode_rounds) const {
    Round round;
    const double start = now_us();
    double encoded = start;
    ADDEND_TRY(codec.begin(gradient_.data()));
    for (uint32_t rounds = 1;; ++rounds) {
      auto more = codec.next_round(round);
      if (!more) return more.error();
      if (!*more) break;
      if (rounds <= encode_rounds) encoded = now_us();
    }
    ADDEND_TRY(codec.finish(target));
    return Laps{encoded - start, now_us() - encoded};
  }

  /// The gradient becomes what this codec makes of it.
  Status round(const Subject& subject) const {
    auto codec = make_codec(subject.rounded_by, subject.square);
    if (!codec) return codec.error();
    ADDEND_TRY(step(**codec, gradient_.data(), kAllRounds));
    return {};
  }

  /// Two steps (the second knows the union), the second decoded over garbage: a decoder that leaves
  /// holes is found.
  Status check(Codec& codec, const Subject& subject) const {
    if (subject.most_nmse == 0) ADDEND_TRY(step(codec, gradient_.data(), subject.encode_rounds));
    std::memset(copy_.data(), 0xa5, copy_.bytes());
    ADDEND_TRY(step(codec, copy_.data(), subject.encode_rounds));
    if (subject.most_nmse > 0) return check_lossy(subject);
    if (std::memcmp(copy_.data(), gradient_.data(), copy_.bytes()) != 0) {
      return make_error(Errc::kUndecodable,
                        fmt::format("{} did not give the gradient back", subject.name));
    }
    if (codec.report().mode == subject.mode) return {};
    return make_error(Errc::kUnsupported,
                      fmt::format("{} ran in mode {} instead of {}", subject.name,
                                  codec.report().mode, subject.mode));
  }

  Status check_lossy(const Subject& subject) const {
    const void* gradient = gradient_.data();
    const workload::SumCheck sum =
        workload::check_sum(DType::kF32, {&gradient, 1}, copy_.data(), options_.count);
    const auto* decoded = static_cast<const float*>(copy_.data());
    const auto zeros = static_cast<uint64_t>(std::count(decoded, decoded + options_.count, 0.0f));
    if (sum.nmse() <= subject.most_nmse && zeros >= options_.count - nonzeros_) return {};
    return make_error(Errc::kUndecodable,
                      fmt::format("{}: NMSE {:g} instead of at most {:g}, or a zero was filled",
                                  subject.name, sum.nmse(), subject.most_nmse));
  }

  Result<CodecLine> measure(const Subject& subject, Codec& codec) const {
    auto result = race({gradient_.data(), copy_.data(), gradient_.bytes()}, options_.repeats,
                       [&] { return step(codec, gradient_.data(), subject.encode_rounds); });
    if (!result) return result.error();
    CodecLine line = codec_line(codec.report(), *result);
    line.subject = subject.name;
    line.codec = subject.codec;
    return line;
  }

  uint64_t nonzeros() const { return nonzeros_; }

 private:
  explicit Bench(const BenchOptions& options) : options_(options) {}

  BenchOptions options_;
  PageBuffer gradient_;
  PageBuffer copy_;
  uint64_t nonzeros_ = 0;
};

void add_time_bars(const Subject& subject, const CodecLine& line, std::vector<Bar>& bars) {
  const auto add = [&](const char* part, double value, double limit) {
    if (limit == 0) return;
    bars.push_back(
        {fmt::format("{}: {} time / memcpy", subject.name, part), value, limit, true, true});
  };
  add("encode", line.encode_x, subject.max_encode_x);
  add("decode", line.decode_x, subject.max_decode_x);
  add("encode + decode", line.total_x, subject.max_total_x);
}

void add_byte_bars(const Subject& subject, const BenchOptions& options, uint64_t nonzeros,
                   const Report& report, std::vector<Bar>& bars) {
  const double wire = static_cast<double>(report.wire_bytes);
  const double values = 4 * static_cast<double>(nonzeros);
  if (subject.codec == std::string_view("exact:mode=packed")) {
    const double index = static_cast<double>(options.count) / 8;
    bars.push_back({fmt::format("{}: wire bytes / (count / 8 + 4 non-zeros)", subject.name),
                    wire / (index + values), 1.001});
  }
  if (subject.mode == "bloom") {
    const double density = static_cast<double>(nonzeros) / static_cast<double>(options.count);
    const double entropy = -density * std::log2(density) - (1 - density) * std::log2(1 - density);
    const double least = static_cast<double>(options.count) * entropy / 8 + values;
    bars.push_back(
        {fmt::format("{}: wire bytes / (entropy of the index + 4 non-zeros)", subject.name),
         wire / least, 1.35});
  }
  if (subject.mode == "cast") {
    bars.push_back({fmt::format("{}: wire bytes / (2 count)", subject.name),
                    wire / (2 * static_cast<double>(options.count)), 1.0});
  }
  if (subject.mode == "two-level") {
    bars.push_back(
        {fmt::format("{}: wire bytes / (4 non-zeros)", subject.name), wire / values, 1.02});
  }
}

/// The same subject with several threads.
Status bench_threads(const Subject& subject, Bench& bench, BenchResults& results) {
  const auto* found = std::find_if(std::begin(kThreaded), std::end(kThreaded),
                                   [&](const auto& one) { return one.subject == subject.name; });
  if (found == std::end(kThreaded)) return {};
  for (std::size_t i = 0; i < found->max_total_x.size(); ++i) {
    const uint32_t threads = 2u << i;
    if (threads > usable_cores()) break;
    ThreadPool pool(threads);
    const ThreadPool::Use use(pool);
    auto codec = bench.make_codec(subject.codec, subject.square);
    if (!codec) return codec.error();
    ADDEND_TRY(bench.check(**codec, subject));
    auto line = bench.measure(subject, **codec);
    if (!line) return line.error();
    line->subject = fmt::format("{}, {} threads", subject.name, threads);
    results.bars.push_back({fmt::format("{}: encode + decode time / memcpy", line->subject),
                            line->total_x, found->max_total_x[i], true, true});
    results.codecs.push_back(*std::move(line));
  }
  return {};
}

/// Cells a non-zero need a million of them: where the bench is too small for that at 5 %, more are
/// drawn. And they need a codec that has seen enough unions to know that they do not vary: before,
/// it leaves room.
Status bench_sketch_cells(const BenchOptions& options, Bench& bench, BenchResults& results) {
  constexpr double kNonzeros = 1.25e6;
  const double density = std::max(0.05, kNonzeros / static_cast<double>(options.count));
  if (density > 0.5) return {};
  bench.draw({density, 1});
  auto codec = bench.make_codec(kMillion.codec);
  if (!codec) return codec.error();
  constexpr int kFewUnions = 8;
  for (int seen = 0; seen <= kFewUnions; seen += 2)  // a check is two steps
    ADDEND_TRY(bench.check(**codec, kMillion));
  const Report& report = (*codec)->report();
  results.bars.push_back({fmt::format("sketch, {} non-zeros: cells / non-zero", bench.nonzeros()),
                          static_cast<double>(report.cells) / static_cast<double>(bench.nonzeros()),
                          1.30});
  return {};
}

}  // namespace

Status bench_codecs(const BenchOptions& options, BenchResults& results) {
  auto bench = Bench::create(options);
  if (!bench) return bench.error();
  for (const Subject& subject : kSubjects) {
    if (!options.wants(subject.name)) continue;
    fmt::print(stderr, "bench: {}\n", subject.name);
    bench->draw(subject.pattern);
    if (subject.rounded_by != nullptr) ADDEND_TRY(bench->round(subject));
    auto codec = bench->make_codec(subject.codec, subject.square);
    if (!codec) return codec.error();
    ADDEND_TRY(bench->check(**codec, subject));
    auto line = bench->measure(subject, **codec);
    if (!line) return line.error();
    add_time_bars(subject, *line, results.bars);
    add_byte_bars(subject, options, bench->nonzeros(), (*codec)->report(), results.bars);
    results.codecs.push_back(*std::move(line));
    ADDEND_TRY(bench_threads(subject, *bench, results));
  }
  if (options.wants("sketch cells")) ADDEND_TRY(bench_sketch_cells(options, *bench, results));
  return {};
}

}  // namespace addend::cli
