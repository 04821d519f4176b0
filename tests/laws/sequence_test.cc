// SPDX-License-Identifier: Apache-2.0
// What plans that follow the last sums cost over many steps. Counted bytes and rounds of fixed
// seeds: nothing here fails by chance.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "codec/exact/sketch.h"
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

}  // namespace
}  // namespace addend::testing_support
