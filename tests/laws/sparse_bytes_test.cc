// SPDX-License-Identifier: Apache-2.0
// What `exact` sends for sparse unions, beside what no code could do without. Counted bytes of
// fixed seeds: nothing here fails by chance.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/bits.h"
#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

// Bytes of the index of random positions and of their values.
double least_bytes(double count, double keys, double value_bits) {
  const double p = keys / count;
  return (count * (-p * std::log2(p) - (1 - p) * std::log2(1 - p)) + keys * value_bits) / 8;
}

struct Key {
  uint64_t position;
  float sum;
};

// Two workers' gradients, which keep their memory from step to step.
struct Gradients {
  std::vector<Bytes> of;
  std::vector<Key> keys;

  explicit Gradients(uint64_t count) : of(2, Bytes(count * 4)) {}

  // `count` random positions, each of one worker or of both.
  void draw(uint64_t count, uint64_t step) {
    keys.clear();
    for (Bytes& gradient : of)
      std::fill(gradient.begin(), gradient.end(), uint8_t{0});
    for (uint64_t draw = 0; keys.size() < count; ++draw) {
      const uint64_t random = addend_random(step + 1000, draw), at = random % (of[0].size() / 4);
      const uint64_t owner = keys.size() % 2;
      if (read(DType::kF32, of[0], at) + read(DType::kF32, of[1], at) != 0) continue;
      const float others = random >> 62 == 0 ? 2.0f : 0.0f;
      write(DType::kF32, of[owner], at, 1.5f);
      write(DType::kF32, of[1 - owner], at, others);
      keys.push_back({at, 1.5f + others});
    }
  }

  // Whether both workers have the sums of what was drawn, and nothing else.
  bool summed() {
    bool right = of[0] == of[1];
    for (const Key& key : keys) {
      right = right && read(DType::kF32, of[0], key.position) == key.sum;
      write(DType::kF32, of[0], key.position, 0);
    }
    return right && std::all_of(of[0].begin(), of[0].end(), [](uint8_t byte) { return byte == 0; });
  }
};

// A network where bytes decide.
Layout slow_network(uint64_t count) {
  Layout layout = layout_of({DType::kF32, count, 2});
  layout.network = {50, 0.001};
  return layout;
}

// Bytes of a step over the least, once what earlier ones showed is known. The sizes of unions are
// `keys`, more or less by a standard deviation of `variation`.
double over_least(const Layout& layout, uint64_t keys, double variation, uint64_t steps) {
  constexpr uint64_t kLearnt = 8;
  Lockstep workers("exact", layout);
  Gradients gradients(layout.count);
  double bytes = 0, least = 0;
  for (uint64_t step = 0; step < kLearnt + steps; ++step) {
    const double times = std::max(0.1, 1 + variation * normal(17, step));
    gradients.draw(static_cast<uint64_t>(static_cast<double>(keys) * times), step);
    EXPECT_TRUE(workers.step(gradients.of));
    EXPECT_TRUE(gradients.summed()) << layout.count << " step " << step;
    const Report& report = workers.codec(0).report();
    EXPECT_EQ(report.union_nonzeros, gradients.keys.size());
    if (step < kLearnt) continue;
    bytes += static_cast<double>(report.wire_bytes);
    least += least_bytes(static_cast<double>(layout.count),
                         static_cast<double>(gradients.keys.size()), 32);
  }
  return bytes / least;
}

TEST(SparseBytes, StayNearTheEntropyOfRandomPositionsAtAnyDensity) {
  struct Case {
    double density;
    uint64_t count;
    uint64_t steps;
  };
  for (const Case& c : {Case{1e-6, 1 << 24, 5}, Case{1e-5, 1 << 22, 5}, Case{1e-4, 1 << 20, 4},
                        Case{1e-3, 1 << 18, 4}, Case{1e-2, 1 << 18, 2}, Case{0.03, 1 << 18, 2},
                        Case{0.06, 1 << 18, 2}, Case{0.08, 1 << 18, 2}, Case{0.3, 1 << 18, 2}}) {
    const auto keys = static_cast<uint64_t>(c.density * static_cast<double>(c.count));
    const double times = over_least(slow_network(c.count), keys, 0, c.steps);
    std::printf("density %g: %.3f of the entropy of the index and 32 bits a value\n", c.density,
                times);
    EXPECT_LE(times, 1.35) << c.density;
  }
}

// A filter that is too small has false positions, one that is too large costs its own bytes.
TEST(SparseBytes, GrowLittleWhereUnionsVary) {
  for (const double variation : {0.05, 0.1, 0.2}) {
    const double times = over_least(slow_network(1 << 18), 500, variation, 60);
    std::printf("unions +- %.0f %%: %.3f of the least\n", 100 * variation, times);
    EXPECT_LE(times, 1.3 + variation) << variation;
  }
}

// Where the union grows a hundredfold from one step to the next, what the filter holds is asked
// for: no more than a bit a position on top of the values.
TEST(SparseBytes, AreBoundedByABitAPositionWhereAUnionOutgrowsItsFilter) {
  const Layout layout = slow_network(1 << 18);
  Lockstep workers("exact", layout);
  Gradients gradients(layout.count);
  for (uint64_t step = 0; step < 4; ++step) {
    gradients.draw(step < 3 ? 50 : 5000, step);
    ASSERT_TRUE(workers.step(gradients.of));
    ASSERT_TRUE(gradients.summed());
  }
  const Report& report = workers.codec(0).report();
  EXPECT_EQ(report.mode, "bloom");
  EXPECT_EQ(report.fallback, "refined");
  EXPECT_EQ(report.rounds, 3u);
  EXPECT_EQ(report.union_nonzeros, 5000u);
  EXPECT_LE(report.wire_bytes, 1.01 * (static_cast<double>(layout.count) / 8 + 4 * 5000));
}

// Bytes that a worker puts on a mesh: a plane's shares there and its sums back, or, of lanes that
// are its own, all of them to everyone.
double mesh_bytes(const Report& report, double world) {
  const double times = report.mode == "gather" ? world - 1 : 2 * (world - 1) / world;
  return times * static_cast<double>(report.wire_bytes);
}

// Each worker has one of every 100 rows of 16, which is the same on all of them for a share of the
// hundreds; but workers other than `full` only in a share `present` of those.
struct Rows {
  double shared = 0;
  double present = 1;
  uint32_t full = 0;

  std::vector<Bytes> of(const Layout& layout, uint64_t step) const {
    const Scenario all{DType::kF32, layout.count, layout.world, 1, Overlap::kFull, 1};
    return make_gradients(all, [&](uint32_t w, uint64_t i) {
      const uint64_t row = i / 16, hundred = row / 100;
      if (w != full && uniform(step + 500, hundred) >= present) return 0.0f;
      const uint64_t owner = uniform(step, hundred) < shared ? 0 : w + 1;
      const bool live = addend_random(1000 * owner + step, hundred) % 100 == row % 100;
      return live ? small_integer(step, w, i) + 100 : 0.0f;
    });
  }
};

// What a worker sent once the choice had settled.
struct Sent {
  double mean = 0, most = 0;
  std::string_view mode;
};

Sent send(const char* spec, const Layout& layout, const Rows& rows) {
  Lockstep workers(spec, layout);
  std::vector<double> sent(layout.world);
  for (uint64_t step = 0; step < 8; ++step) {
    std::vector<Bytes> gradients = rows.of(layout, step);
    const std::vector<double> expected =
        sums(Scenario{DType::kF32, layout.count, layout.world}, gradients);
    EXPECT_TRUE(workers.step(gradients));
    for (uint64_t i = 0; i < layout.count; ++i) {
      if (static_cast<double>(read(DType::kF32, gradients[1], i)) == expected[i]) continue;
      ADD_FAILURE() << spec << ", step " << step << ", element " << i;
      break;
    }
    for (uint32_t w = 0; w < layout.world && step >= 4; ++w)
      sent[w] += mesh_bytes(workers.codec(w).report(), layout.world);
  }
  return {std::accumulate(sent.begin(), sent.end(), 0.0) / layout.world,
          *std::max_element(sent.begin(), sent.end()), workers.codec(0).report().mode};
}

constexpr const char* kForms[] = {"exact:mode=gather", "exact:mode=two-level,block=128",
                                  "exact:mode=two-level", "exact:mode=bloom"};

Layout gathering_network(uint32_t world) {
  Layout layout = layout_of({DType::kF32, 1 << 16, world});
  layout.network = {1, 0.01, true};
  return layout;
}

TEST(SparseBytes, AreThoseOfTheBetterOfAGatherAndAUnionForEveryOverlap) {
  for (const uint32_t world : {2u, 4u, 8u}) {
    const Layout layout = gathering_network(world);
    for (const double shared : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const Rows rows{shared};
      const Sent chosen = send("exact", layout, rows);
      double best = std::numeric_limits<double>::infinity();
      for (const char* form : kForms)
        best = std::min(best, send(form, layout, rows).mean);
      std::printf("%u workers, %.0f %% of rows shared: %.3f of the better (%s)\n", world,
                  100 * shared, chosen.mean / best, std::string(chosen.mode).c_str());
      EXPECT_LE(chosen.mean, 1.05 * best) << world << " " << shared;
    }
  }
}

// Where workers have few rows or many, a step takes as long as the busiest link: in a gather, that
// of the worker with most rows, who sends them to everybody.
TEST(SparseBytes, OfTheBusiestLinkAreThoseOfTheBetterWhereWorkersHaveUnequalRows) {
  for (const uint32_t world : {2u, 4u, 8u}) {
    const Layout layout = gathering_network(world);
    for (const double shared : {0.0, 0.5}) {
      for (const double present : {0.5, 0.1, 0.0}) {
        const Rows rows{shared, present, world - 1};
        const Sent chosen = send("exact", layout, rows);
        double best = std::numeric_limits<double>::infinity(), least_mean = best;
        for (const char* form : kForms) {
          const Sent sent = send(form, layout, rows);
          best = std::min(best, sent.most);
          least_mean = std::min(least_mean, sent.mean);
        }
        std::printf(
            "%u workers, %.0f %% shared, others have %.0f %%: %.3f of the better (%s); of the mean "
            "of all links %.3f\n",
            world, 100 * shared, 100 * present, chosen.most / best,
            std::string(chosen.mode).c_str(), chosen.mean / least_mean);
        EXPECT_LE(chosen.most, 1.05 * best) << world << " " << shared << " " << present;
      }
    }
  }
}

}  // namespace
}  // namespace addend::testing_support
