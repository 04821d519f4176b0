// SPDX-License-Identifier: Apache-2.0
// Sums of sparse rows are what anybody would add up, on all workers, over any reducer, whatever the
// sizes do from step to step. Seeds are fixed.
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/fold.h"
#include "tests/support/flushed.h"
#include "tests/support/row_workers.h"

namespace addend::testing_support {
namespace {

using Over = RowWorkers::Over;

constexpr RowElement kElements[] = {RowElement::kF32, RowElement::kBf16, RowElement::kF16,
                                    RowElement::kF64, RowElement::kI64,  RowElement::kI32,
                                    RowElement::kI8,  RowElement::kU8};
// Rows of the largest worker, step by step: each change of size once up and once down.
constexpr uint64_t kCounts[] = {0, 3, 3, 500, 520, 0, 0, 2000, 40, 1};

RowLayout layout_of(RowElement element, uint64_t width, uint32_t world, double latency_us = 50) {
  RowLayout layout;
  layout.element = element;
  layout.width = width;
  layout.world = world;
  layout.seed = 5;
  layout.id = 77;
  layout.network.latency_us = latency_us;
  return layout;
}

// Worker 1 brings nothing in every other step; rows of a small table are shared by many.
std::vector<RowPart> parts_of(const RowLayout& layout, uint64_t most, uint64_t table,
                              uint64_t step) {
  std::vector<RowPart> parts;
  for (uint32_t w = 0; w < layout.world; ++w) {
    const uint64_t count = w == 1 && step % 2 == 1 ? 0 : most / (w / 2 + 1);
    parts.push_back(random_part(layout, count, table, step * 100 + w));
  }
  return parts;
}

struct Seen {
  std::set<std::string> modes;
  std::set<uint32_t> rounds;
};

Seen expect_right_sums(Over over, const std::string& spec, const RowLayout& layout,
                       uint64_t table) {
  Seen seen;
  RowWorkers workers(over, spec, layout);
  for (uint64_t step = 0; step < std::size(kCounts); ++step) {
    const auto parts = parts_of(layout, kCounts[step], table, step);
    const RowPart expected = plain_sum(layout, parts);
    const std::string next(workers[0].codec().next_mode());
    for (const RowPart& sum : workers.step(parts)) {
      EXPECT_EQ(sum.rows, expected.rows);
      EXPECT_EQ(sum.values, expected.values)
          << spec << ", " << layout.world << " workers, step " << step << ", planned " << next;
    }
    const Report& report = workers[0].codec().report();
    EXPECT_EQ(report.dense_bytes, 0u);
    seen.modes.emplace(report.mode);
    seen.rounds.insert(report.rounds);
  }
  return seen;
}

TEST(RowLaws, SumsAreRightForEveryTypeAndWorldOverEveryReducer) {
  for (const Over over : {Over::kLocal, Over::kMesh}) {
    for (const uint32_t world : {1u, 2u, 3u, 4u, 5u}) {
      for (const RowElement element : kElements)
        expect_right_sums(over, "exact", layout_of(element, 3, world), 1000);
    }
  }
}

TEST(RowLaws, ValuesGoBothWays) {
  std::set<std::string> modes;
  for (const Over over : {Over::kLocal, Over::kMesh}) {
    for (const uint32_t world : {3u, 5u}) {
      for (const RowElement element : {RowElement::kF32, RowElement::kBf16, RowElement::kF16}) {
        for (const double latency : {0.0, 1e9}) {  // rounds cost nothing, or all
          for (const uint64_t table : {50ull, 1ull << 40}) {
            const Seen seen =
                expect_right_sums(over, "dense", layout_of(element, 16, world, latency), table);
            modes.insert(seen.modes.begin(), seen.modes.end());
            EXPECT_TRUE(latency == 0 || seen.modes.size() == 1) << "only gathers";
          }
        }
      }
    }
  }
  EXPECT_EQ(modes, (std::set<std::string>{"gather", "union"}));
}

TEST(RowLaws, RowsWithoutElementsHaveAUnion) {
  for (const uint32_t world : {1u, 3u})
    expect_right_sums(Over::kMesh, "exact", layout_of(RowElement::kF32, 0, world), 100);
}

TEST(RowLaws, ValuesThatAreCodedGoThroughTheirCodec) {
  for (const std::string spec : {"exact:values=reproducible", "cast:to=bf16"}) {
    for (const Over over : {Over::kLocal, Over::kMesh}) {
      for (const uint32_t world : {1u, 2u, 4u}) {
        const Seen seen =
            expect_right_sums(over, spec, layout_of(RowElement::kF32, 5, world), 1000);
        EXPECT_EQ(seen.modes, std::set<std::string>{"union"});
      }
    }
  }
}

TEST(RowLaws, TypesThatReducersDoNotAddAreExactWhateverTheSpec) {
  for (const RowElement element : {RowElement::kF64, RowElement::kI64, RowElement::kU8})
    expect_right_sums(Over::kMesh, "quant:bits=4", layout_of(element, 5, 3), 1000);
}

TEST(RowLaws, QuantisedSumsAreNearAndTheSameOnAllWorkersAndOverAllReducers) {
  const RowLayout layout = layout_of(RowElement::kF32, 64, 3);
  RowWorkers local(Over::kLocal, "quant:bits=8", layout), mesh(Over::kMesh, "quant:bits=8", layout);
  for (uint64_t step = 0; step < 6; ++step) {
    const auto parts = parts_of(layout, 200 + 3 * step, 300, step);
    const RowPart expected = plain_sum(layout, parts);
    const auto sums = local.step(parts);
    EXPECT_EQ(mesh.step(parts)[2], sums[0]);
    ASSERT_EQ(sums[0].rows, expected.rows);
    EXPECT_EQ(sums[1], sums[0]);
    double error = 0, energy = 0;
    for (std::size_t at = 0; at < expected.values.size(); at += 4) {
      const double right = load_row_element(layout.element, expected.values.data() + at);
      const double got = load_row_element(layout.element, sums[0].values.data() + at);
      error += (right - got) * (right - got);
      energy += right * right;
    }
    EXPECT_LT(error, 1e-3 * energy);
    EXPECT_GT(error, 0) << "it was not quantised";
    EXPECT_GT(local[0].codec().report().sampled_energy, 0);
  }
}

// What a codec draws depends on seed and step: one that is made later goes on like the first.
TEST(RowLaws, ACodecMadeLaterDrawsLikeOneThatRanAllSteps) {
  RowLayout layout = layout_of(RowElement::kF32, 64, 2);
  RowWorkers first(Over::kLocal, "quant:bits=2", layout);
  const auto parts = parts_of(layout, 200, 300, 0);
  const auto step_0 = first.step(parts), step_1 = first.step(parts);
  EXPECT_NE(step_0, step_1);
  layout.first_step = 1;
  EXPECT_EQ(RowWorkers(Over::kLocal, "quant:bits=2", layout).step(parts), step_1);
}

TEST(RowLaws, ASteadyStepOfSmallGathersHasOneRound) {
  const RowLayout layout = layout_of(RowElement::kF32, 4, 3);
  RowWorkers workers(Over::kMesh, "exact", layout);
  const std::vector<std::pair<uint64_t, uint32_t>> rounds = {
      {1000, 2}, {1000, 1}, {1050, 1}, {990, 1}, {3000, 2}, {3000, 1}, {2, 1}, {2, 1}, {900, 2}};
  for (const auto& [count, expected] : rounds) {
    workers.step(parts_of(layout, count, 1 << 30, 2));
    EXPECT_EQ(workers[2].codec().report().rounds, expected) << count;
  }
}

TEST(RowLaws, BytesOnTheWireAreAWorkersOwn) {
  RowLayout layout = layout_of(RowElement::kF32, 1000, 4, 0);  // no room: it does not pay
  RowWorkers workers(Over::kMesh, "exact", layout);
  const auto parts = parts_of(layout, 50, 1 << 30, 2);
  workers.step(parts);
  const Report& report = workers[1].codec().report();
  EXPECT_EQ(report.rounds, 2u);
  EXPECT_EQ(report.wire_bytes, 8 + parts[1].rows.size() * (8 + 4000));
}

TEST(RowLaws, ScaledValuesAreMultipliedBeforeTheyAreAdded) {
  for (const double latency : {0.0, 1e9}) {
    RowLayout layout = layout_of(RowElement::kF16, 2, 4, latency);
    layout.scale = 0.25;
    RowWorkers workers(Over::kMesh, "exact", layout);
    for (int step = 0; step < 2; ++step) {
      std::vector<RowPart> parts(4);
      for (RowPart& part : parts) {
        part.rows = {7};
        for (int e = 0; e < 2; ++e)
          append_row_element(layout.element, 40000, part.values);
      }
      const auto sums = workers.step(parts);
      EXPECT_EQ(load_row_element(layout.element, sums[3].values.data()), 40000);
    }
  }
}

// Arbitrary floats: gathered, they are added in the order of workers, as planes add them.
TEST(RowLaws, GatheredSumsHaveTheBitsOfFoldsInTheOrderOfWorkers) {
  for (const RowElement element : {RowElement::kF32, RowElement::kBf16, RowElement::kF16}) {
    const RowLayout layout = layout_of(element, 33, 3, 1e9);
    std::mt19937_64 random(3);
    std::vector<RowPart> parts(3);
    const uint64_t bytes = 33 * row_element_bytes(element);
    std::vector<uint8_t> expected(bytes, 0);
    for (RowPart& part : parts) {
      part.rows = {4, 4};
      for (uint64_t i = 0; i < 2 * layout.width; ++i) {
        const double mantissa = static_cast<double>(random()) * 0x1p-64 - 0.5;
        append_row_element(element, std::ldexp(mantissa, static_cast<int>(random() % 30) - 20),
                           part.values);
      }
      for (const uint64_t at : {uint64_t{0}, bytes}) {
        fold(static_cast<Op>(element), expected.data(), part.values.data() + at, layout.width);
      }
    }
    for (const RowPart& sum : RowWorkers(Over::kMesh, "exact", layout).step(parts))
      EXPECT_EQ(sum.values, expected);
  }
}

TEST(RowLaws, AThreadThatFlushesSubnormalsGetsTheSameSums) {
  for (const std::string spec : {"exact", "exact:values=reproducible"}) {
    for (const double latency : {0.0, 1e9}) {
      const RowLayout layout = layout_of(RowElement::kF32, 8, 3, latency);
      std::vector<RowPart> parts(3);
      for (RowPart& part : parts) {
        part.rows = {1, 2, 1};
        for (int e = 0; e < 24; ++e)
          append_row_element(layout.element, (e + 1) * 0x1p-149, part.values);
      }
      const RowPart expected = plain_sum(layout, parts);
      RowWorkers workers(Over::kLocal, spec, layout);
      const Flushed flushed;  // threads inherit it
      for (int step = 0; step < 3; ++step) {
        for (const RowPart& sum : workers.step(parts))
          EXPECT_EQ(sum.values, expected.values);
      }
    }
  }
}

TEST(RowLaws, AStepThatIsCancelledLeavesEverythingAsBeforeIt) {
  for (const std::string spec : {"exact", "exact:values=reproducible", "quant:bits=2"}) {
    const RowLayout layout = layout_of(RowElement::kF32, 16, 3, 0);
    RowWorkers workers(Over::kMesh, spec, layout), others(Over::kMesh, spec, layout);
    for (uint64_t step = 0; step < 4; ++step) {
      const auto parts = parts_of(layout, 100, 60, step), strange = parts_of(layout, 700, 900, 9);
      const uint64_t before = workers[1].codec().fingerprint();
      for (uint32_t rounds = 0; rounds < 4; ++rounds) {
        if (rounds < 3 || spec != "exact") workers.step(strange, rounds);
        EXPECT_EQ(workers[1].codec().fingerprint(), before);
        EXPECT_TRUE(workers[1].codec().rows().empty());
      }
      const auto sums = workers.step(parts);
      EXPECT_EQ(sums, others.step(parts)) << spec << ", step " << step;
      EXPECT_EQ(workers[2].codec().fingerprint(), others[0].codec().fingerprint());
      EXPECT_NE(workers[2].codec().fingerprint(), before);
    }
  }
}

}  // namespace
}  // namespace addend::testing_support
