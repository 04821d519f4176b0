// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/calibration.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "addend/codec.h"
#include "addend/fold.h"
#include "addend/reduce.h"
#include "addend/threads.h"
#include "apps/addend/codecs.h"
#include "apps/addend/worker.h"
#include "apps/workload/gradient.h"

namespace addend::cli {

namespace {

using control::CodecCost;
using control::CodecModel;
using control::Point;

constexpr uint64_t kLeastBytes = 64 << 10;
constexpr int kSizes = 5, kWarmUps = 2, kRepeats = 7;
constexpr double kDensities[] = {0.001, 0.01, 0.1, 0.3, 1};
constexpr double kLeastSeconds = 1e-8;  // a clock's, so that nothing is divided by zero
const char* const kCodecs[] = {"exact",
                               "cast:to=f16",
                               "cast:to=bf16",
                               "quant",
                               "quant:index=auto",
                               "topk:density=0.01",
                               "threshold:density=0.01",
                               "random:density=0.01",
                               "leader:density=0.01"};

Deadline patience() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

/// One step of one worker; what the others would have added is nothing.
struct StepCost {
  double encode_s = 0, decode_s = 0;
  double up_bytes = 0, down_bytes = 0;
};

class Bench {
 public:
  static Result<std::unique_ptr<Bench>> create(const CalibrationOptions& options) {
    auto group = create_local_group(1);
    if (!group) return group.error();
    return std::unique_ptr<Bench>(new Bench(options, (*group)->reducer(0)));
  }

  /// Draws a gradient of the largest size; smaller ones are its beginning.
  void draw(double density) {
    workload::GradientSpec spec;
    spec.count = gradient_.size();
    spec.density = density;
    spec.seed = options_.seed;
    generate(spec, {0, 0}, {0, spec.count}, gradient_.data());
  }

  /// Costs at the density that is drawn.
  Result<CodecCost> measure(const CodecSpec& spec, double density, CodecModel& model) {
    std::vector<Point> encode, decode, up, down;
    for (int size = 0; size < kSizes; ++size) {
      const uint64_t count = elements(size);
      auto cost = typical_step(spec, count, model);
      if (!cost) return cost.error();
      const auto x = static_cast<double>(count);
      encode.push_back({x, std::max(cost->encode_s, kLeastSeconds)});
      decode.push_back({x, std::max(cost->decode_s, kLeastSeconds)});
      up.push_back({x, std::max(cost->up_bytes, 1.0)});
      down.push_back({x, std::max(cost->down_bytes, 1.0)});
    }
    return CodecCost{density, fit_line(encode), fit_line(decode), fit_line(up), fit_line(down)};
  }

  /// 1 minus the relative squared error of one worker's contribution to a sum of all.
  Result<double> fidelity(const CodecSpec& spec, std::span<const float> gradient) {
    auto codec = create(spec, gradient.size());
    if (!codec) return codec.error();
    std::vector<float> sum(gradient.size());
    ADDEND_TRY(step(**codec, gradient.data(), sum.data()));
    const Report& report = (*codec)->report();
    if (!(report.sampled_energy > 0)) return 1.0;
    return std::max(0.0, 1 - report.sampled_error / report.sampled_energy);
  }

  std::span<const float> gradient() const { return gradient_; }

  /// Adding a plane of floats to another.
  control::Line add() const {
    std::vector<float> sum(gradient_.size());
    std::vector<Point> points;
    for (int size = 0; size < kSizes; ++size) {
      const uint64_t count = elements(size);
      std::vector<double> seconds;
      for (int i = 0; i < kRepeats; ++i) {
        const double begin = now_us();
        fold(Op::kSumF32, sum.data(), gradient_.data(), count);
        seconds.push_back(std::max((now_us() - begin) * 1e-6, kLeastSeconds));
      }
      points.push_back({4 * static_cast<double>(count), median(seconds)});
    }
    return control::fit_line(points);
  }

 private:
  Bench(const CalibrationOptions& options, std::unique_ptr<Reducer> alone)
      : options_(options),
        alone_(std::move(alone)),
        gradient_(std::max(options.largest_bytes, kLeastBytes) / 4),
        target_(gradient_.size()) {}

  /// Sizes in equal steps of a factor, from the least to the largest.
  uint64_t elements(int size) const {
    const double least = kLeastBytes / 4.0, most = static_cast<double>(gradient_.size());
    return static_cast<uint64_t>(least * std::pow(most / least, size / (kSizes - 1.0)));
  }

  Result<std::unique_ptr<Codec>> create(const CodecSpec& spec, uint64_t count) const {
    Layout layout;
    layout.count = count;
    // Workers lead in turn, and here is but one.
    layout.world = spec.name == "leader" ? 1 : options_.workers;
    layout.seed = options_.seed;
    return create_codec(spec, layout);
  }

  Result<StepCost> step(Codec& codec, const float* from, float* to) {
    Round round;
    StepCost cost;
    double begin = now_us();
    ADDEND_TRY(codec.begin(from));
    for (;;) {
      const auto more = codec.next_round(round);
      if (!more) return more.error();
      if (!*more) break;
      cost.encode_s += (now_us() - begin) * 1e-6;
      for (const Plane& plane : round) {
        cost.up_bytes += static_cast<double>(op_bytes(plane.op, plane.lanes));
        cost.down_bytes += static_cast<double>(op_sum_bytes(plane.op, plane.lanes));
      }
      ADDEND_TRY(alone_->reduce(round, patience()));
      begin = now_us();
    }
    ADDEND_TRY(codec.finish(to));
    cost.decode_s = (now_us() - begin) * 1e-6;
    return cost;
  }

  Result<StepCost> typical_step(const CodecSpec& spec, uint64_t count, CodecModel& model) {
    auto codec = create(spec, count);
    if (!codec) return codec.error();
    std::vector<double> encode, decode;
    StepCost last;
    for (int i = 0; i < kWarmUps + kRepeats; ++i) {
      auto cost = step(**codec, gradient_.data(), target_.data());
      if (!cost) return cost.error();
      if (i < kWarmUps) continue;
      encode.push_back(cost->encode_s);
      decode.push_back(cost->decode_s);
      last = *cost;
    }
    model.rounds = std::max(model.rounds, (*codec)->report().rounds);
    return StepCost{median(encode), median(decode), last.up_bytes, last.down_bytes};
  }

  const CalibrationOptions& options_;
  std::unique_ptr<Reducer> alone_;
  std::vector<float> gradient_, target_;
};

/// Whether costs follow the share of elements that are non-zero somewhere.
bool looks_at_union(const CodecSpec& spec) {
  const bool indexed = std::any_of(spec.options.begin(), spec.options.end(),
                                   [](const auto& option) { return option.first == "index"; });
  return spec.name == "exact" || (spec.name == "quant" && indexed);
}

CodecModel dense_model() {
  CodecModel model;
  model.spec = "dense";
  CodecCost cost;
  cost.up_bytes.slope = cost.down_bytes.slope = 4;
  model.costs = {cost};
  return model;
}

Result<CodecModel> model_of(const CodecSpec& spec) {
  CodecModel model;
  model.spec = spec.to_string();
  if (spec.name == "cast" || spec.name == "quant") {
    model.loss = control::Loss::kUnbiased;
  } else if (spec.name == "topk" || spec.name == "threshold" || spec.name == "redsync" ||
             spec.name == "random" || spec.name == "leader") {
    model.loss = control::Loss::kBiased;
    model.same_positions = spec.name == "random" || spec.name == "leader";
    for (const auto& [key, value] : spec.options) {
      if (key == "density") model.keeps = std::strtod(value.c_str(), nullptr);
    }
    if (!(model.keeps > 0)) {
      return make_error(Errc::kInvalidArgument,
                        fmt::format("{}: say which density= it keeps", model.spec));
    }
  } else if (spec.name != "exact") {
    return make_error(Errc::kUnsupported,
                      fmt::format("{}: what it takes does not follow from the number of elements "
                                  "alone, so plan has no model of it",
                                  model.spec));
  }
  return model;
}

Status measure_at(Bench& bench, const CodecSpec& spec, double density, CodecModel& model) {
  auto cost = bench.measure(spec, density, model);
  if (!cost) return cost.error();
  model.costs.push_back(*cost);
  return {};
}

/// One draw for all codecs, because drawing takes longer than most of them.
Status measure_all(Bench& bench, const std::vector<CodecSpec>& specs,
                   std::vector<CodecModel>& models) {
  for (const double density : kDensities) {
    bench.draw(density);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (looks_at_union(specs[i])) {
        ADDEND_TRY(measure_at(bench, specs[i], density, models[i]));
      } else if (density == 1) {
        const double keeps = models[i].keeps > 0 ? models[i].keeps : 1;
        ADDEND_TRY(measure_at(bench, specs[i], keeps, models[i]));
      }
    }
  }
  return {};
}

}  // namespace

Result<control::Calibration> calibrate(const CalibrationOptions& options) {
  std::vector<std::string> names = options.codecs;
  if (names.empty()) names.assign(std::begin(kCodecs), std::end(kCodecs));
  std::erase(names, "dense");
  Layout layout;
  layout.count = 1;
  layout.world = options.workers;
  const auto specs = parse_codecs(names, layout);
  ADDEND_TRY(specs);
  std::vector<CodecModel> models;
  for (const CodecSpec& spec : *specs) {
    auto model = model_of(spec);
    if (!model) return model.error();
    models.push_back(*std::move(model));
  }
  auto bench = Bench::create(options);
  if (!bench) return bench.error();
  ThreadPool pool(options.threads == 0 ? default_threads(1) : options.threads);
  const ThreadPool::Use use(pool);
  ADDEND_TRY(measure_all(**bench, *specs, models));
  const bool drawn = options.gradient.empty();
  for (std::size_t i = 0; i < specs->size(); ++i) {
    if (models[i].loss == control::Loss::kNone) continue;
    auto fidelity =
        (*bench)->fidelity((*specs)[i], drawn ? (*bench)->gradient() : options.gradient);
    if (!fidelity) return fidelity.error();
    models[i].fidelity = *fidelity;
  }
  control::Calibration calibration{{dense_model()}, (*bench)->add()};
  std::move(models.begin(), models.end(), std::back_inserter(calibration.codecs));
  return calibration;
}

}  // namespace addend::cli
