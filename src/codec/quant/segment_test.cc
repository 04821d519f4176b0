// SPDX-License-Identifier: Apache-2.0
// Segments: how they are cut, what is refused, and what may change under a saved one. That results
// do not depend on buckets is a law (tests/laws).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "codec/quant/block.h"
#include "codec/quant/blocks.h"
#include "tests/support/quant_gradients.h"
#include "tests/support/quant_workers.h"

namespace addend::quant {
namespace {

using namespace testing_support;

Layout segmented(std::vector<Segment> segments, uint32_t world = 2) {
  Layout layout = quant_layout(world, 0);
  for (const Segment& segment : segments)
    layout.count += segment.count;
  layout.segments = std::move(segments);
  return layout;
}

std::vector<uint32_t> sizes(const Layout& layout, uint64_t block) {
  Blocks blocks;
  blocks.cut(layout, block);
  std::vector<uint32_t> sizes;
  for (const Block& b : blocks)
    sizes.push_back(b.size);
  return sizes;
}

TEST(Blocks, EndInFallingPowersOfTwoInSegmentsAndInOnePaddedBlockWithout) {
  using Sizes = std::vector<uint32_t>;
  EXPECT_EQ(sizes(quant_layout(1, 5000), 2048), (Sizes{2048, 2048, 1024}));
  EXPECT_EQ(sizes(segmented({{7, 5000}}), 2048), (Sizes{2048, 2048, 512, 256, 128, 64}));
  EXPECT_EQ(sizes(segmented({{7, 64}, {8, 0}, {9, 1}, {1, 130}}), 2048), (Sizes{64, 64, 128, 64}));
  EXPECT_EQ(sizes(segmented({{7, 100}, {8, 300}}), 0), (Sizes{128, 512})) << "block=whole";
}

TEST(Blocks, CoverEverySegmentOnceWithLittlePadding) {
  std::vector<Segment> segments;
  for (uint64_t s = 0; s < 300; ++s)
    segments.push_back({s * s, s * 17 % 4999});
  const Layout layout = segmented(segments);
  Blocks blocks;
  blocks.cut(layout, 1024);
  ASSERT_EQ(blocks.segments(), 300u);
  uint64_t at = 0, place = 0, b = 0;
  for (uint64_t s = 0; s < 300; ++s) {
    const uint64_t end = at + segments[s].count, start = place;
    ASSERT_EQ(blocks.segment(s).first, b);
    for (uint64_t number = 0; at < end; ++number, ++b) {
      const Block& block = blocks[b];
      ASSERT_EQ(block.begin, at);
      ASSERT_EQ(block.place, place);
      ASSERT_EQ(block.owner, segments[s].id);
      ASSERT_EQ(block.number, number);
      ASSERT_LE(block.elements, block.size);
      ASSERT_TRUE(std::has_single_bit(block.size) && block.size <= 1024);
      at += block.elements;
      place += block.size;
    }
    ASSERT_EQ(at, end);
    ASSERT_EQ(blocks.segment(s).first + blocks.segment(s).count, b);
    ASSERT_LT(place - start, segments[s].count + kLeastBlock);
  }
  EXPECT_EQ(blocks.size(), b);
  EXPECT_EQ(blocks.padded(), place);
}

TEST(Segments, MustAddUpAndHaveDifferentIds) {
  const struct {
    uint64_t count;
    std::vector<Segment> segments;
    const char* named;
  } cases[] = {
      {100, {{1, 99}}, "add up"},
      {100, {{1, 50}, {2, 51}}, "add up"},
      {100, {{1, ~uint64_t{0}}, {2, 101}}, "add up"},
      {100, {{1, 50}, {1, 50}}, "id 1"},
      {0, {{4, 0}, {4, 0}}, "id 4"},
  };
  for (const char* spec : {"quant", "exact", "dense"}) {
    for (const auto& c : cases) {
      Layout layout = quant_layout(2, c.count);
      layout.segments = c.segments;
      const auto codec = create_codec(*CodecSpec::parse(spec), layout);
      ASSERT_FALSE(codec) << spec;
      EXPECT_EQ(codec.error().code, Errc::kInvalidArgument);
      EXPECT_NE(codec.error().message.find(c.named), std::string::npos) << codec.error().message;
    }
  }
}

TEST(Segments, AndTheFirstStepArePartOfThePlan) {
  for (const char* spec : {"quant", "exact", "dense"}) {
    std::vector<uint64_t> prints;
    for (const std::vector<Segment>& segments : std::vector<std::vector<Segment>>{
             {{1, 100}, {2, 50}}, {{2, 100}, {1, 50}}, {{1, 50}, {2, 100}}, {{1, 150}}}) {
      const Layout layout = segmented(segments);
      prints.push_back((*create_codec(*CodecSpec::parse(spec), layout))->fingerprint());
    }
    Layout later = segmented({{1, 150}});
    later.first_step = 3;
    QuantWorkers starts_late(spec, later), starts_now(spec, segmented({{1, 150}}));
    prints.push_back(starts_late.codec(0).fingerprint());
    std::sort(prints.begin(), prints.end());
    EXPECT_EQ(std::adjacent_find(prints.begin(), prints.end()), prints.end()) << spec;
  }
}

// A step's rounding belongs to its number, not to the age of the codec.
TEST(Segments, ACodecThatStartsLaterGoesOnWithTheSameRandomness) {
  const Layout layout = segmented({{5, 3000}});
  Layout later = layout;
  later.first_step = 9;
  QuantWorkers workers("quant", layout), fresh("quant", later);
  for (uint64_t step = 0; step < 9; ++step) {
    Gradients gradients = gaussian(layout, step);
    ASSERT_TRUE(workers.step(gradients));
  }
  EXPECT_EQ(fresh.codec(0).fingerprint(), workers.codec(0).fingerprint());
  Gradients expected = gaussian(layout, 9), actual = expected;
  ASSERT_TRUE(workers.step(expected));
  ASSERT_TRUE(fresh.step(actual));
  EXPECT_EQ(actual, expected);
}

struct Refusal {
  const char* spec;
  Layout layout;
  uint32_t worker;
  const char* why;
};

TEST(Segments, AStateOfAnotherIsRefusedWithTheReasonAndChangesNothing) {
  const Layout layout = segmented({{5, 300}, {6, 300}});
  QuantWorkers workers("quant:feedback=float", layout);
  Gradients gradients = gaussian(layout, 1);
  ASSERT_TRUE(workers.step(gradients));
  const Bytes state = *workers.codec(0).save_segment(0);
  Layout next = layout, seeded = layout, half = layout;
  next.first_step = seeded.first_step = half.first_step = 1;
  seeded.seed = 77;
  half.dtype = DType::kF16;
  const Refusal refusals[] = {
      {"quant:feedback=float", next, 1, "of worker 0, this is worker 1"},
      {"quant:feedback=float", layout, 0, "of step 1, this codec's next is 0"},
      {"quant:feedback=float", seeded, 0, "another segment or plan"},
      {"quant:feedback=float", half, 0, "another segment or plan"},
      {"quant:feedback=float,bits=5", next, 0, "another segment or plan"},
      {"quant:feedback=byte", next, 0, "size"},
      {"quant", next, 0, "of a codec with feedback"},
      {"dense", next, 0, "no state"},
  };
  for (const Refusal& r : refusals) {
    QuantWorkers target(r.spec, r.layout);
    const Bytes before = *target.codec(r.worker).save_segment(0);
    const Status status = target.codec(r.worker).load_segment(0, state);
    ASSERT_FALSE(status) << r.spec << ": " << r.why;
    EXPECT_EQ(status.error().code, Errc::kMismatch);
    EXPECT_NE(status.error().message.find(r.why), std::string::npos) << status.error().message;
    EXPECT_EQ(*target.codec(r.worker).save_segment(0), before);
  }
  QuantWorkers target("quant:feedback=float", next);
  Codec& codec = target.codec(0);
  EXPECT_FALSE(codec.load_segment(1, state)) << "of segment 0";
  EXPECT_EQ(codec.load_segment(2, state).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(codec.save_segment(2).error().code, Errc::kInvalidArgument);
  EXPECT_FALSE(codec.load_segment(0, std::span(state).first(20)));
  EXPECT_TRUE(codec.load_segment(0, state));
  ASSERT_TRUE(codec.begin(gradients[0].data()));
  EXPECT_FALSE(codec.save_segment(0)) << "between steps only";
  EXPECT_FALSE(codec.load_segment(0, state));
  EXPECT_FALSE(codec.scale_residual(2));
}

TEST(Segments, WithoutFeedbackAStateIsEmptyAndFitsNoOther) {
  const Layout layout = segmented({{5, 300}, {6, 0}});
  QuantWorkers plain("quant", layout), feedback("quant:feedback=byte", layout);
  for (const uint64_t s : {0u, 1u}) {
    EXPECT_TRUE(plain.codec(0).save_segment(s)->empty());
    EXPECT_TRUE(plain.codec(0).load_segment(s, {}));
    EXPECT_FALSE(feedback.codec(0).save_segment(s)->empty()) << "has a step and a worker to check";
    EXPECT_FALSE(feedback.codec(0).load_segment(s, {}));
  }
}

TEST(Segments, AStateOfTheWholeNamesItsWorkerToo) {
  const Layout layout = quant_layout(2, 300);
  QuantWorkers workers("quant:feedback=float", layout);
  const Status other = workers.codec(1).load_state(*workers.codec(0).save_state());
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("of worker 0, this is worker 1"), std::string::npos);
}

// A layout without segments has one: all of it.
TEST(Segments, TheWholeOfAPlainLayoutIsSegmentZero) {
  Layout layout = quant_layout(2, 3000);
  QuantWorkers workers("quant:feedback=byte", layout);
  Gradients gradients = gaussian(layout, 1);
  ASSERT_TRUE(workers.step(gradients));
  layout.first_step = 1;
  QuantWorkers restarted("quant:feedback=byte", layout);
  for (uint32_t w = 0; w < 2; ++w)
    ASSERT_TRUE(restarted.codec(w).load_segment(0, *workers.codec(w).save_segment(0)));
  Gradients expected = gaussian(layout, 2), actual = expected;
  ASSERT_TRUE(workers.step(expected));
  ASSERT_TRUE(restarted.step(actual));
  EXPECT_EQ(actual, expected);
}

// What feedback owes a worker is in units of its gradient, so a group of another size pays it.
TEST(Segments, AResidualOutlivesAChangeOfTheWorld) {
  const Layout layout = segmented({{5, 4096}}, 2);
  QuantWorkers pair("quant:bits=2,feedback=float", layout);
  Gradients gradients = gaussian(layout, 1);
  const Gradients before = gradients;
  ASSERT_TRUE(pair.step(gradients));
  Layout wider = layout;
  wider.world = 3;
  wider.first_step = 1;
  QuantWorkers trio("quant:bits=2,feedback=float", wider);
  for (uint32_t w = 0; w < 2; ++w)
    ASSERT_TRUE(trio.codec(w).load_segment(0, *pair.codec(w).save_segment(0)));
  // With zero gradients from now on, what comes out is what is owed.
  std::vector<double> owed(layout.count);
  double first = 0, last = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    owed[i] = static_cast<double>(read(layout.dtype, before[0], i)) +
              static_cast<double>(read(layout.dtype, before[1], i)) -
              static_cast<double>(read(layout.dtype, gradients[0], i));
    first += owed[i] * owed[i];
  }
  for (int step = 0; step < 40; ++step) {
    Gradients zeros = gradients_of(wider, [](uint32_t, uint64_t) { return 0.0; });
    ASSERT_TRUE(trio.step(zeros));
    for (uint64_t i = 0; i < layout.count; ++i)
      owed[i] -= static_cast<double>(read(layout.dtype, zeros[0], i));
  }
  for (const double x : owed)
    last += x * x;
  EXPECT_LT(last, 1e-4 * first);
}

TEST(ScaleResidual, ByPowersOfTwoGoesOnAsIfGradientsHadAlwaysBeenScaled) {
  const Layout layout = segmented({{5, 3000}, {6, 70}});
  for (const char* spec : {"quant:feedback=float", "quant:feedback=byte", "quant", "exact"}) {
    QuantWorkers plain(spec, layout), halved(spec, layout);
    for (uint64_t step = 0; step < 12; ++step) {
      const double scale = step < 5 ? 1 : 0.125;
      if (step == 5) {
        for (uint32_t w = 0; w < 2; ++w)
          ASSERT_TRUE(halved.codec(w).scale_residual(0.125));
      }
      if (std::string(spec) == "exact") continue;
      Gradients expected = gaussian(layout, step), actual = gaussian(layout, step, scale);
      ASSERT_TRUE(plain.step(expected));
      ASSERT_TRUE(halved.step(actual));
      for (uint64_t i = 0; i < layout.count; ++i) {
        ASSERT_EQ(read(layout.dtype, actual[0], i),
                  static_cast<float>(scale) * read(layout.dtype, expected[0], i))
            << spec << " step " << step;
      }
    }
    for (const double factor : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
      EXPECT_EQ(plain.codec(0).scale_residual(factor).error().code, Errc::kInvalidArgument);
    }
  }
}

TEST(ScaleResidual, DropsWhatOverflows) {
  const Layout layout = segmented({{5, 128}}, 1);
  for (const char* spec : {"quant:bits=1,feedback=float", "quant:bits=1,feedback=byte"}) {
    QuantWorkers worker(spec, layout);
    Gradients gradients = gaussian(layout, 1, 1e30);
    ASSERT_TRUE(worker.step(gradients));
    ASSERT_TRUE(worker.codec(0).scale_residual(1e30));
    Gradients zeros = gradients_of(layout, [](uint32_t, uint64_t) { return 0.0; });
    ASSERT_TRUE(worker.step(zeros));
    for (uint64_t i = 0; i < layout.count; ++i)
      EXPECT_EQ(read(layout.dtype, zeros[0], i), 0) << spec;
  }
}

}  // namespace
}  // namespace addend::quant
