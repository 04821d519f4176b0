// SPDX-License-Identifier: Apache-2.0
// What plans that follow the last sums cost over many steps, and what restarts and other codecs on
// the way change. Counted bytes and rounds of fixed seeds: nothing here fails by chance.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codec/exact/sketch.h"
#include "codec/readable_residual.h"
#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

enum class Spread : uint8_t { kNormal, kUniform };

// Two workers whose union has `keys` positions, more or less: with a standard deviation of
// `variation`, or up to that much either way.
struct Varying {
  uint64_t keys;
  double variation;
  Spread spread;

  uint64_t size(uint64_t step) const {
    const double draw = spread == Spread::kNormal ? normal(17, step) : 2 * uniform(17, step) - 1;
    return static_cast<uint64_t>(static_cast<double>(keys) * std::max(0.1, 1 + variation * draw));
  }

  std::vector<Bytes> gradients(const Layout& layout, uint64_t step) const {
    std::vector<Bytes> made(layout.world, Bytes(layout.count * 4, 0));
    // A shuffled prefix of all positions; an odd multiplier permutes a power of two.
    for (uint64_t i = 0; i < size(step); ++i)
      write(DType::kF32, made[i % 2], (i * 2654435761u + step * 977) % layout.count, 1.0f);
    return made;
  }
};

struct Costs {
  double extra_rounds = 0;  // the share of steps that took one
  double bytes = 0;         // over those of sketches that know the size of the union
};

Costs costs_of_sketches(const Layout& layout, const Varying& unions) {
  constexpr uint64_t kSteps = 200;
  Lockstep workers("exact:mode=sketch", layout);
  // Index, escaped words and the largest exponent.
  const double others = static_cast<double>(layout.count / 8 + layout.count / 512 + 4);
  double bytes = 0, least = 0, extra = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<Bytes> gradients = unions.gradients(layout, step);
    EXPECT_TRUE(workers.step(gradients));
    const Report& report = workers.codec(0).report();
    EXPECT_EQ(report.union_nonzeros, unions.size(step));
    if (step == 0) continue;
    extra += report.fallback != "none" ? 1 : 0;
    bytes += static_cast<double>(report.wire_bytes);
    const auto informed = exact::SketchShape::plan(unions.size(step), 1, 1, 0);
    least += others + 8 * static_cast<double>(informed.cells());
  }
  return {extra / kSteps, bytes / least};
}

// Head-room is learnt: unions that vary cost cells and hardly ever a round, others cost neither.
TEST(Sequence, SketchesHaveRoomForUnionsThatVary) {
  const Layout layout = layout_of(2, 1 << 16);
  for (const uint64_t keys : {uint64_t{500}, uint64_t{15000}}) {
    for (const Spread spread : {Spread::kNormal, Spread::kUniform}) {
      for (const double variation : {0.0, 0.1, 0.2}) {
        const Costs costs = costs_of_sketches(layout, {keys, variation, spread});
        std::printf("%5lu keys +- %2.0f %% %s: %.4f of steps take another round, bytes x %.3f\n",
                    static_cast<unsigned long>(keys), 100 * variation,
                    spread == Spread::kNormal ? "normal " : "uniform", costs.extra_rounds,
                    costs.bytes);
        EXPECT_LE(costs.extra_rounds, 0.02) << keys << " " << variation;
        EXPECT_LE(costs.bytes, 1.03 + 2.5 * variation) << keys << " " << variation;
      }
    }
  }
}

// What a step's gradients are like.
enum class Kind : uint8_t { kRows, kScattered, kDense, kNan, kInfinity };

// 1 % of the elements, as rows of 64 or one by one, others every step; or all of them, which all
// are not numbers on one worker.
std::vector<Bytes> gradients_of(Kind kind, const Layout& layout, uint64_t step) {
  const Scenario all{layout.dtype, layout.count, layout.world, 1, Overlap::kFull, 1};
  return make_gradients(all, [&](uint32_t w, uint64_t i) {
    const uint64_t place = kind == Kind::kRows ? i / 64 : i;
    const bool sparse = kind == Kind::kRows || kind == Kind::kScattered;
    if (sparse && uniform(100 * step + w, place) >= 0.005) return 0.0f;
    if (w == 1 && kind == Kind::kNan) return std::numeric_limits<float>::quiet_NaN();
    if (w == 1 && kind == Kind::kInfinity) return std::numeric_limits<float>::infinity();
    return small_integer(step, w, i);
  });
}

Layout slow_network(DType dtype) {
  Layout layout = layout_of(2, 64 * 2048);
  layout.dtype = dtype;
  layout.network = {50, 0.1};  // bytes decide
  return layout;
}

// Bytes of `exact` over those of the best mode of each step, which knows the step.
double bytes_over_best(const Layout& layout, uint64_t steps,
                       const std::function<Kind(uint64_t)>& kind) {
  Lockstep workers("exact", layout);
  std::vector<Lockstep> modes;
  for (const char* spec : {"dense", "exact:mode=packed", "exact:mode=two-level",
                           "exact:mode=two-level,block=256", "exact:mode=bloom"})
    modes.emplace_back(spec, layout);
  if (layout.network.gathers) modes.emplace_back("exact:mode=gather", layout);
  double bytes = 0, best = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    const std::vector<Bytes> gradients = gradients_of(kind(step), layout, step);
    const auto bytes_of = [&](Lockstep& codecs) {
      std::vector<Bytes> sums = gradients;
      EXPECT_TRUE(codecs.step(sums)) << step;  // also that all workers have one plan
      return static_cast<double>(codecs.codec(0).report().wire_bytes);
    };
    bytes += bytes_of(workers);
    double least = std::numeric_limits<double>::infinity();
    for (Lockstep& mode : modes)
      least = std::min(least, bytes_of(mode));
    best += least;
  }
  return bytes / best;
}

// A dense step now and then, or one that is not finite, does not make the others dense.
TEST(Sequence, BytesAreNearTheBestOfEveryStep) {
  struct Case {
    const char* name;
    uint64_t steps;
    Kind odd;
    std::function<bool(uint64_t)> is_odd;
  };
  const std::vector<Case> cases = {
      {"sparse", 150, Kind::kDense, [](uint64_t) { return false; }},
      {"one NaN step in 150", 150, Kind::kNan, [](uint64_t s) { return s == 75; }},
      {"infinite at first", 150, Kind::kInfinity, [](uint64_t s) { return s == 0; }},
      {"a dense step every 100", 300, Kind::kDense, [](uint64_t s) { return s % 100 == 50; }},
      {"dense and sparse in turns", 100, Kind::kDense, [](uint64_t s) { return s % 2 == 0; }},
      {"dense", 300, Kind::kDense, [](uint64_t) { return true; }},
  };
  for (const Case& one : cases) {
    for (const Kind usual : {Kind::kRows, Kind::kScattered}) {
      for (const bool gathers : {false, true}) {  // on a mesh, messages of one's own may be best
        Layout layout = slow_network(usual == Kind::kRows ? DType::kF32 : DType::kF16);
        layout.network.gathers = gathers;
        const double ratio = bytes_over_best(
            layout, one.steps, [&](uint64_t step) { return one.is_odd(step) ? one.odd : usual; });
        std::printf("%s, %s%s: bytes x %.3f\n", one.name,
                    usual == Kind::kRows ? "rows" : "scattered", gathers ? ", mesh" : "", ratio);
        EXPECT_LE(ratio, 1.3) << one.name;
      }
    }
  }
}

// The longer all was dense, the longer it takes to see that it no longer is, and no longer.
TEST(Sequence, LooksForSparseGradientsAsLongAsItWentWithoutThem) {
  const Layout layout = slow_network(DType::kF32);
  for (const uint64_t dense : {1, 2, 3, 7, 20, 60}) {
    Lockstep workers("exact", layout);
    uint64_t late = 0;
    for (uint64_t step = 0; step < 2 * dense + 10; ++step) {
      std::vector<Bytes> sums =
          gradients_of(step < dense ? Kind::kDense : Kind::kRows, layout, step);
      ASSERT_TRUE(workers.step(sums));
      late += step >= dense && workers.codec(0).report().mode == "dense" ? 1 : 0;
    }
    EXPECT_LE(late, dense) << "after " << dense << " dense steps";
    EXPECT_EQ(workers.codec(0).report().mode, "two-level");
  }
}

// Lowrank's bytes are those of its rank, whatever it learnt. Directions that turn by a fiftieth of
// a turn a step are followed from the second step on; others, at once, are caught up with as soon.
TEST(Sequence, LowrankFollowsDirectionsThatTurn) {
  constexpr uint64_t kRows = 60, kColumns = 80;
  for (const uint32_t world : {3u, 17u}) {
    Layout layout = layout_of(world, kRows * kColumns);
    layout.segments = {{1, layout.count, kRows}};
    Lockstep workers("lowrank:rank=2", layout);
    for (uint64_t step = 0; step < 30; ++step) {
      const uint64_t stream = step < 20 ? 7 : 8;
      const double angle = 6.283185307179586 * static_cast<double>(step) / 50;
      std::vector<Bytes> gradients =
          make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
            const uint64_t row = i / kColumns, column = i % kColumns;
            const double first = normal(stream, row) * normal(stream + 2, column);
            const double second = normal(stream + 4, row) * normal(stream + 6, column);
            const double noise = 0.02 * normal(100 * step + w, i);
            return static_cast<float>(std::cos(angle) * first + second + noise);
          });
      const std::vector<double> truth = sums(scenario_of(layout), gradients);
      ASSERT_TRUE(workers.step(gradients));
      EXPECT_EQ(workers.codec(0).report().wire_bytes, 4 * 2 * (kRows + kColumns));
      double error = 0, energy = 0;
      for (uint64_t i = 0; i < layout.count; ++i) {
        error +=
            std::pow(static_cast<double>(read(DType::kF32, gradients[world - 1], i)) - truth[i], 2);
        energy += truth[i] * truth[i];
      }
      if (step % 20 > 1) {
        EXPECT_LE(error, 0.02 * energy) << "world " << world << " step " << step;
      }
    }
  }
}

// A matrix and a vector, on three workers.
Layout matrix_and_vector(DType dtype) {
  Layout layout = layout_of(3, 3001);
  layout.dtype = dtype;
  layout.segments = {{7, 2400, 40}, {3, 601}};
  return layout;
}

// Sparse, dense and silent steps of integers.
std::vector<Bytes> changing(const Layout& layout, uint64_t step) {
  constexpr double kDensities[] = {0.05, 0.05, 1, 0.3, 0, 1, 0.01, 1, 1, 0.2, 0.05};
  Scenario s = scenario_of(layout);
  s.density = kDensities[step % std::size(kDensities)];
  s.overlap = Overlap::kRandom;
  s.seed += step;
  return make_gradients(s, [&](uint32_t w, uint64_t i) { return small_integer(step, w, i); });
}

// What the sums without some workers stand for: the mean of the others, for all.
std::vector<double> stands_for(const Layout& layout, std::vector<Bytes> gradients, uint32_t out) {
  if (out < layout.world) gradients.erase(gradients.begin() + out);
  std::vector<double> all = sums(scenario_of(layout), gradients);
  for (double& one : all)
    one *= static_cast<double>(layout.world) / static_cast<double>(gradients.size());
  return all;
}

struct AnySpec {
  const char* spec;
  /// Squared error of all steps' sums together, over the energy of what they should be; what is
  /// owed is an error here.
  double error;
};

// Every codec; quant in every carrier, feedback, index and way back.
constexpr double kExactly = 0;
constexpr AnySpec kAnySpec[] = {
    {"dense", kExactly},
    {"cast:bf16", kExactly},
    {"cast:f16,feedback=float", kExactly},
    {"exact", kExactly},
    {"exact:mode=sketch", kExactly},
    {"exact:mode=two-level,values=reproducible", kExactly},
    {"exact:mode=bloom", kExactly},
    {"exact:mode=gather", kExactly},
    {"quant", 0.01},
    {"quant:bits=4,feedback=float", 0.01},
    {"quant:bits=4,feedback=byte", 0.01},
    {"quant:bits=auto,feedback=float", 0.01},
    {"quant:carrier=indices,rounding=independent", 0.02},
    {"quant:bits=4,block=64,feedback=float,rotate=none", 0.01},
    {"quant:bits=8,down=8", 0.01},
    {"quant:bits=3,down=4,feedback=float", 0.03},
    {"quant:index=auto", 0.01},
    {"quant:index=packed,feedback=float", 0.01},
    {"quant:index=auto,bits=3,down=4,feedback=float", 0.03},
    {"quant:norms=ahead,feedback=float", 0.03},
    {"quant:norms=ahead,feedback=byte,bits=8,down=8", 0.03},
    {"lowrank:rank=2", 0.4},
    {"lowrank:rank=1,factors=quant", 0.6},
    {"topk:density=0.1", 0.1},
    {"topk:density=0.1,index=two-level", 0.1},
    {"threshold:density=0.1", 0.03},
    {"dgc:density=0.1,momentum=0", 0.01},
    {"redsync:density=0.1", 0.01},
    {"random:density=0.1", 0.5},
    {"leader:density=0.1", 0.2},
};

double squares(const std::vector<double>& values) {
  double total = 0;
  for (const double one : values)
    total += one * one;
  return total;
}

class AnyCodec : public testing::TestWithParam<AnySpec> {};

// Workers that are restarted now and then, all at once, against those that never are.
TEST_P(AnyCodec, IsRestartedWithoutChangingABitWhoeverIsMissing) {
  const auto& [spec, bound] = GetParam();
  const bool may_miss = std::string(spec).rfind("quant", 0) == 0;
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const Layout layout = matrix_and_vector(dtype);
    Lockstep straight(spec, layout);
    auto restarted = std::make_unique<Lockstep>(spec, layout);
    std::vector<double> lacks(layout.count, 0.0), all(layout.count, 0.0);
    for (uint64_t step = 0; step < 22; ++step) {
      const std::string what =
          std::string(spec) + " " + dtype_name(dtype) + " step " + std::to_string(step);
      if (step % 5 == 3) {
        auto next = std::make_unique<Lockstep>(spec, layout);
        for (uint32_t w = 0; w < layout.world; ++w)
          ASSERT_TRUE(next->codec(w).load_state(*restarted->codec(w).save_state())) << what;
        restarted = std::move(next);
      }
      const bool misses = may_miss && step % 4 == 2;
      const auto out = misses ? static_cast<uint32_t>(step / 4 % layout.world) : layout.world;
      const std::vector<Bytes> gradients = changing(layout, step);
      std::vector<Bytes> expected = gradients, found = gradients;
      for (uint32_t w = 0; w < layout.world; ++w) {
        straight.leave_out(w, w == out);
        restarted->leave_out(w, w == out);
      }
      const Status status = straight.step(expected);
      ASSERT_TRUE(status) << what << ": " << status.error().message;
      ASSERT_TRUE(restarted->step(found)) << what;
      ASSERT_EQ(found, expected) << what;
      for (const Bytes& other : found)
        ASSERT_EQ(other, found[0]) << what;
      const std::vector<double> truth = stands_for(layout, gradients, out);
      for (uint64_t i = 0; i < layout.count; ++i) {
        const auto sum = static_cast<double>(read(dtype, found[0], i));
        if (bound == kExactly) {
          ASSERT_EQ(sum, truth[i]) << what << " element " << i;
        }
        lacks[i] += truth[i] - sum;
        all[i] += truth[i];
      }
    }
    std::printf("%s %s: %.4f of the energy of all steps\n", spec, dtype_name(dtype),
                squares(lacks) / squares(all));
    EXPECT_LE(squares(lacks), bound * squares(all)) << spec << " " << dtype_name(dtype);
  }
}

// Adds what worker w's codec owes, if it owes anything, to `to`.
void add_owed(Lockstep& workers, uint32_t w, std::vector<float>& to) {
  const auto* readable = dynamic_cast<const ReadableResidual*>(&workers.codec(w));
  if (readable == nullptr) return;
  ASSERT_TRUE(readable->add_residual(to.data()));
}

// The part of the energy that a codec may neither send nor owe: what it rounds, where it has no
// feedback, where that is rounded to bytes, and what is rounded behind its back: sums of 16-bit
// floats, and narrowed ones. 1e-9 is what floats round.
double not_owed(const std::string& spec) {
  const auto has = [&](const char* part) { return spec.find(part) != std::string::npos; };
  if (spec.rfind("cast", 0) == 0) return 1e-4;
  if (spec.rfind("quant", 0) != 0) return 1e-9;
  return has("feedback=float") && !has("down=") ? 1e-9 : 0.02;
}

// Five steps by one codec, five by another, whose first gradient gets what the first one owes
// (decision 0088). All that was given has then come back or is owed.
void check_switch(const std::string& from, const std::string& to) {
  Layout layout = matrix_and_vector(DType::kF32), later = layout;
  later.first_step = 5;
  Lockstep before(from, layout), after(to, later);
  std::vector<double> lacks(layout.count, 0.0), all(layout.count, 0.0);
  for (uint64_t step = 0; step < 10; ++step) {
    std::vector<Bytes> gradients = changing(layout, step);
    const std::vector<double> truth = sums(scenario_of(layout), gradients);
    for (uint32_t w = 0; w < layout.world && step == later.first_step; ++w) {
      std::vector<float> owed(layout.count, 0.0f);
      add_owed(before, w, owed);
      for (uint64_t i = 0; i < layout.count; ++i)
        write(DType::kF32, gradients[w], i, read(DType::kF32, gradients[w], i) + owed[i]);
    }
    ASSERT_TRUE((step < later.first_step ? before : after).step(gradients)) << from << ", " << to;
    for (uint64_t i = 0; i < layout.count; ++i) {
      lacks[i] += truth[i] - static_cast<double>(read(DType::kF32, gradients[2], i));
      all[i] += truth[i];
    }
  }
  for (uint32_t w = 0; w < layout.world; ++w) {
    std::vector<float> owed(layout.count, 0.0f);
    add_owed(after, w, owed);
    for (uint64_t i = 0; i < layout.count; ++i)
      lacks[i] -= static_cast<double>(owed[i]);
  }
  const double bound = std::max(not_owed(from), not_owed(to));
  EXPECT_LE(squares(lacks), bound * squares(all)) << from << ", then " << to;
}

TEST(Sequence, AnyCodecHandsWhatItOwesToAnyOther) {
  for (const std::string_view name : codec_names()) {
    EXPECT_TRUE(
        std::any_of(std::begin(kAnySpec), std::end(kAnySpec),
                    [&](const AnySpec& one) { return std::string(one.spec).rfind(name, 0) == 0; }))
        << name << " is to be one of kAnySpec";
  }
  for (const AnySpec& from : kAnySpec) {
    for (const AnySpec& to : kAnySpec)
      check_switch(from.spec, to.spec);
  }
}

// Ten walks over codecs that owe what they do not send, with a switch after every one to four
// steps: at every step, what came back and what is owed is all that was given.
TEST(Sequence, WhatWasSentAndIsOwedIsAllThatWasGivenAtEveryStepOfManySwitches) {
  std::vector<std::string> specs;
  for (const AnySpec& one : kAnySpec) {
    if (not_owed(one.spec) < 1e-6) specs.emplace_back(one.spec);
  }
  for (uint64_t walk = 0; walk < 10; ++walk) {
    Layout layout = matrix_and_vector(DType::kF32);
    std::vector<double> lacks(layout.count, 0.0), all(layout.count, 0.0);
    std::vector<std::vector<float>> owed(layout.world, std::vector<float>(layout.count, 0.0f));
    std::unique_ptr<Lockstep> workers;
    std::string path;
    uint64_t left = 0;
    for (uint64_t step = 0; step < 40; ++step, --left) {
      std::vector<Bytes> gradients = changing(layout, step + 40 * walk);
      const std::vector<double> truth = sums(scenario_of(layout), gradients);
      if (left == 0) {
        const std::string& spec = specs[addend_random(walk, 2 * step) % specs.size()];
        path += " " + spec;
        left = 1 + addend_random(walk, 2 * step + 1) % 4;
        layout.first_step = step;
        workers = std::make_unique<Lockstep>(spec, layout);
        for (uint32_t w = 0; w < layout.world; ++w) {
          for (uint64_t i = 0; i < layout.count; ++i)
            write(DType::kF32, gradients[w], i, read(DType::kF32, gradients[w], i) + owed[w][i]);
        }
      }
      ASSERT_TRUE(workers->step(gradients)) << "walk " << walk << path;
      double missed = 0;
      for (uint32_t w = 0; w < layout.world; ++w) {
        std::fill(owed[w].begin(), owed[w].end(), 0.0f);
        add_owed(*workers, w, owed[w]);
      }
      for (uint64_t i = 0; i < layout.count; ++i) {
        lacks[i] += truth[i] - static_cast<double>(read(DType::kF32, gradients[0], i));
        all[i] += truth[i];
        double kept = 0;
        for (uint32_t w = 0; w < layout.world; ++w)
          kept += static_cast<double>(owed[w][i]);
        missed += (lacks[i] - kept) * (lacks[i] - kept);
      }
      ASSERT_LE(missed, 1e-9 * squares(all)) << "walk " << walk << ", step " << step << ":" << path;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sequence, AnyCodec, testing::ValuesIn(kAnySpec), [](const auto& param) {
  std::string name = param.param.spec;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace addend::testing_support
