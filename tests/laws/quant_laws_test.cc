// SPDX-License-Identifier: Apache-2.0
// The law of the quantised codec: what workers send are integers whose sum is the sum of what each
// of them says, in every lane, width and world, on every instruction set, in any order of addition.
// quant_average_test.cc shows that it is right on average.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "addend/fold.h"
#include "addend/pipeline.h"
#include "addend/simd.h"
#include "codec/quant/table.h"
#include "gtest/gtest.h"
#include "tests/laws/by_hand.h"
#include "tests/laws/regrouping.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"
#include "tests/support/spawn.h"

namespace addend::testing_support {
namespace {

constexpr uint32_t kWorlds[] = {1, 2, 3, 8, 15, 16, 17, 64, 255, 256, 257, 4096};

// Some of a large world's workers, after round 0. Each speaks for several, so that the sums are
// those of the whole world.
class Crowd {
 public:
  Crowd(const std::string& spec, const Layout& layout, const std::vector<Bytes>& gradients)
      : world_(layout.world) {
    Layout mine = layout;
    rounds_.resize(gradients.size());
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      mine.worker = static_cast<uint32_t>(k * layout.world / gradients.size());
      codecs_.push_back(std::move(*create_codec(*CodecSpec::parse(spec), mine)));
      EXPECT_TRUE(codecs_[k]->begin(gradients[k].data()));
      EXPECT_TRUE(*codecs_[k]->next_round(rounds_[k]));
      EXPECT_EQ(rounds_[k].planes[0].op, Op::kMaxU32);
      if (k > 0) {
        EXPECT_TRUE(fold(rounds_[0].planes[0], rounds_[k].planes[0]));
      }
    }
    const Plane norms = rounds_[0].planes[0];
    for (std::size_t k = 0; k < codecs_.size(); ++k) {
      std::memmove(rounds_[k].planes[0].data, norms.data, norms.lanes * 4);
      EXPECT_TRUE(*codecs_[k]->next_round(rounds_[k]));
    }
  }

  std::size_t planes() const { return rounds_[0].size; }
  const Plane& plane(std::size_t k, std::size_t p = 0) const { return rounds_[k].planes[p]; }

  /// The sums of plane p as an adder makes them.
  Bytes fold_all(std::size_t p) const {
    const Plane& shape = plane(0, p);
    Bytes sums(op_sum_bytes(shape.op, shape.lanes) + 8, 0);
    for (uint32_t w = 0; w < world_; ++w) {
      const Plane& from = plane(w % rounds_.size(), p);
      if (is_table_sum(shape.op)) {
        fold_table(shape.op, sums.data(), static_cast<const uint8_t*>(from.data), from.table,
                   from.lanes);
      } else {
        fold(shape.op, sums.data(), from.data, from.lanes);
      }
    }
    return sums;
  }

  /// Decodes the sums on the first worker.
  void decode(Bytes& gradient) {
    for (std::size_t p = 0; p < planes(); ++p) {
      const Bytes sums = fold_all(p);
      void* to = is_table_sum(plane(0, p).op) ? plane(0, p).sums : plane(0, p).data;
      std::memcpy(to, sums.data(), op_sum_bytes(plane(0, p).op, plane(0, p).lanes));
    }
    EXPECT_FALSE(*codecs_[0]->next_round(rounds_[0]));
    EXPECT_TRUE(codecs_[0]->finish(gradient.data()));
  }

 private:
  uint32_t world_;
  std::vector<std::unique_ptr<Codec>> codecs_;
  std::vector<Round> rounds_;
};

uint64_t lane_at(Op op, const void* data, uint64_t i) {
  if (op == Op::kSumU8 || op == Op::kTableSumU8) return static_cast<const uint8_t*>(data)[i];
  if (op == Op::kSumU16 || op == Op::kTableSumU16) return static_cast<const uint16_t*>(data)[i];
  return static_cast<const uint32_t*>(data)[i];
}

// What one worker says about element i: its level.
uint64_t level_at(const Plane& plane, uint64_t i) {
  if (!is_table_sum(plane.op)) return lane_at(plane.op, plane.data, i);
  const uint8_t pair = static_cast<const uint8_t*>(plane.data)[i / 2];
  return lane_at(plane.op, plane.table, i % 2 == 0 ? pair & 15u : pair >> 4u);
}

TEST(QuantLaw, LevelsAndIndicesGiveTheSumOfWhatWorkersSay) {
  for (const char* rounding : {"correlated", "independent"}) {
    for (uint32_t bits = 1; bits <= 4; ++bits) {
      for (const uint32_t world : kWorlds) {
        const Layout layout = layout_of(world, 200);
        Layout some = layout;
        some.world = std::min(world, 5u);
        const std::vector<Bytes> gradients = standard_normal(some, bits);
        const std::string spec =
            "quant:block=64,bits=" + std::to_string(bits) + ",rounding=" + rounding + ",carrier=";
        const Crowd levels(spec + "levels", layout, gradients);
        const Crowd indices(spec + "indices", layout, gradients);
        const auto choice = *quant::choose_table(bits, world, rounding[0] == 'c');
        const Op planned = choice.lane == quant::Lane::kU8 ? Op::kSumU8 : Op::kSumU16;
        ASSERT_EQ(levels.plane(0).op, planned) << spec << world;
        ASSERT_EQ(indices.plane(0).op, planned == Op::kSumU8 ? Op::kTableSumU8 : Op::kTableSumU16);
        ASSERT_EQ(levels.plane(0).lanes, 256u);
        const Bytes sums = levels.fold_all(0), table_sums = indices.fold_all(0);
        ASSERT_EQ(sums, table_sums) << spec << " world " << world;
        for (uint64_t i = 0; i < 256; ++i) {
          uint64_t sum = 0;
          for (uint32_t w = 0; w < world; ++w) {
            const uint64_t level = level_at(levels.plane(w % some.world), i);
            ASSERT_EQ(level, level_at(indices.plane(w % some.world), i));
            sum += level;
          }
          ASSERT_EQ(lane_at(planned, sums.data(), i), sum) << spec << world << " element " << i;
        }
        EXPECT_EQ(lane_at(Op::kSumI32, levels.fold_all(1).data(), 0), world);
      }
    }
  }
}

// Without rotation the largest magnitude is the top level (or the bottom one): the largest sum
// there can be, from every worker.
TEST(QuantLaw, NoLaneOverflowsWhenEveryWorkerIsAtTheTopLevel) {
  for (uint32_t bits = 1; bits <= 8; ++bits) {
    for (const uint32_t world : kWorlds) {
      for (const char* carrier : {"levels", "indices"}) {
        if (bits > 4 && carrier[0] == 'i') continue;
        const Layout layout = layout_of(world, 64);
        Scenario one = scenario_of(layout);
        one.world = 1;
        std::vector<Bytes> gradients =
            make_gradients(one, [](uint32_t, uint64_t i) { return i % 2 == 0 ? 3.0f : -3.0f; });
        const std::string spec =
            "quant:rotate=none,block=64,bits=" + std::to_string(bits) + ",carrier=" + carrier;
        Crowd crowd(spec, layout, gradients);
        const auto choice = *quant::choose_table(bits, world, true);
        const uint64_t top = uint64_t{world} * choice.table.granularity;
        ASSERT_LE(top, quant::lane_limit(choice.lane));
        const Bytes sums = crowd.fold_all(0);
        for (uint64_t i = 0; i < 64; ++i) {
          ASSERT_EQ(lane_at(crowd.plane(0).op, sums.data(), i), i % 2 == 0 ? top : 0)
              << spec << " world " << world;
        }
        crowd.decode(gradients[0]);
        for (uint64_t i = 0; i < 64; ++i) {
          const float sign = i % 2 == 0 ? 3.0f : -3.0f;
          ASSERT_NEAR(read(DType::kF32, gradients[0], i) / static_cast<float>(world), sign, 1e-5f)
              << spec << " world " << world;
        }
      }
    }
  }
}

constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

// The sums of the last of three steps on this instruction set.
std::vector<Bytes> third_sums(const char* spec, const Layout& layout, const std::string& target) {
  EXPECT_TRUE(force_simd_target(target));
  Lockstep workers(spec, layout);
  std::vector<Bytes> gradients;
  for (uint64_t step = 0; step < 3; ++step) {
    gradients = standard_normal(layout, step);
    EXPECT_TRUE(workers.step(gradients)) << spec;
  }
  EXPECT_TRUE(force_simd_target(""));
  return gradients;
}

// Narrow sums of 3 workers fit their bits or do not; those of 18 never do.
TEST(QuantLaw, EveryInstructionSetGivesTheSameBits) {
  const std::string first = simd_targets().front();
  for (const char* spec :
       {"quant", "quant:carrier=indices,feedback=float", "quant:bits=auto",
        "quant:bits=7,block=64,feedback=byte", "quant:bits=3,block=whole",
        "quant:bits=3,down=8,feedback=float", "quant:bits=1,down=4,block=64",
        "quant:bits=2,down=4,feedback=float", "quant:bits=4,down=4,block=64", "quant:bits=4,down=8",
        "quant:bits=8,down=4", "quant:bits=8,down=8,feedback=byte",
        "quant:norms=ahead,feedback=float,down=8"}) {
    for (const DType dtype : kTypes) {
      for (const uint32_t world : {2u, 3u, 8u, 18u}) {
        Layout layout = layout_of(world, world == 3 ? 5003 : 1100);
        layout.dtype = dtype;
        const std::vector<Bytes> expected = third_sums(spec, layout, first);
        for (const std::string& target : simd_targets()) {
          EXPECT_EQ(third_sums(spec, layout, target), expected)
              << spec << " " << dtype_name(dtype) << " world " << world << " on " << target;
        }
      }
    }
  }
}

TEST(QuantLaw, NarrowSumsThatFitDecodeToTheBitsOfWholeOnes) {
  for (uint32_t bits = 1; bits <= 4; ++bits) {
    for (const uint32_t world : {1u, 2u, 5u, 17u}) {
      const Layout layout = layout_of(world, 3000);
      const std::string spec = "quant:feedback=float,bits=" + std::to_string(bits);
      Layout narrows = layout;
      narrows.network.narrows = true;
      Lockstep whole(spec + ",carrier=indices", layout), narrow(spec + ",down=8", layout);
      Lockstep levels(spec, layout), by_itself(spec, narrows);
      for (uint64_t step = 0; step < 3; ++step) {
        std::vector<Bytes> expected = standard_normal(layout, step);
        const std::vector<Bytes> before = expected;
        ASSERT_TRUE(whole.step(expected));
        for (Lockstep* workers : {&narrow, &levels, &by_itself}) {
          std::vector<Bytes> actual = before;
          ASSERT_TRUE(workers->step(actual));
          ASSERT_EQ(actual, expected) << spec << " world " << world << " step " << step;
        }
      }
      const uint64_t bits_up = 8 * by_itself.codec(0).report().wire_bytes / layout.count;
      EXPECT_LE(bits_up, bits == 4 ? 8u : bits + 1) << world;
    }
  }
}

// What a step's sums lack of the workers' gradients, squared, over what those have.
double squared_error(const Layout& layout, const std::vector<Bytes>& before, const Bytes& after) {
  const std::vector<double> expected = sums(scenario_of(layout), before);
  double error = 0, energy = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    error += std::pow(static_cast<double>(read(layout.dtype, after, i)) - expected[i], 2);
    for (const Bytes& gradient : before)
      energy += std::pow(static_cast<double>(read(layout.dtype, gradient, i)), 2);
  }
  return error / energy;
}

// Gradients are independent, so the sum has the energy of all of them together. quant_average_test
// shows that what it lacks is nothing on average.
TEST(QuantLaw, NarrowSumsAreNearTheSumInEveryTypeAndWorld) {
  const std::pair<const char*, double> specs[] = {
      {"quant:bits=1,down=4", 1.7},   {"quant:bits=2,down=4", 0.27},  {"quant:bits=3,down=4", 0.05},
      {"quant:bits=4,down=4", 0.02},  {"quant:bits=8,down=4", 0.01},  {"quant:bits=3,down=8", 0.05},
      {"quant:bits=4,down=8", 0.016}, {"quant:bits=8,down=8", 0.0005}};
  for (const auto& [spec, bound] : specs) {
    for (const DType dtype : kTypes) {
      double largest = 0;
      for (const uint32_t world : {1u, 2u, 3u, 5u, 17u, 18u, 64u, 257u}) {
        Layout layout = layout_of(world, 1100);
        layout.dtype = dtype;
        Lockstep workers(spec, layout);
        for (uint64_t step = 0; step < 2; ++step) {
          const std::vector<Bytes> before = standard_normal(layout, step);
          std::vector<Bytes> after = before;
          ASSERT_TRUE(workers.step(after)) << spec << " world " << world;
          for (const Bytes& other : after)
            ASSERT_EQ(other, after[0]) << spec << " world " << world;
          const double error = squared_error(layout, before, after[0]);
          EXPECT_LE(error, bound) << spec << " " << dtype_name(dtype) << " world " << world;
          largest = std::max(largest, error);
        }
      }
      std::printf("%s %s: squared error at most %.4f\n", spec, dtype_name(dtype), largest);
    }
  }
}

// Without rotation a state's residual is the gradient's elements, behind a header.
void add_kept(Lockstep& workers, const Layout& layout, double sign, std::vector<double>& to) {
  for (uint32_t w = 0; w < layout.world; ++w) {
    Bytes kept = *workers.codec(w).save_state();
    kept.erase(kept.begin(), kept.begin() + 16);
    for (uint64_t i = 0; i < layout.count; ++i)
      to[i] += sign * static_cast<double>(read(DType::kF32, kept, i));
  }
}

// Norms grow by more than the head-room, fall, and are silent. What is decoded and what is kept are
// all that there was, but for the rounding of the result's type.
TEST(QuantLaw, NormsAheadLoseNothingInAnyTypeAndWorld) {
  constexpr double kScales[] = {1, 3, 0.25, 0, 1, 1};
  for (const DType dtype : kTypes) {
    for (const uint32_t world : {1u, 17u, 18u, 64u}) {
      Layout layout = layout_of(world, 640);
      layout.dtype = dtype;
      Lockstep workers("quant:norms=ahead,feedback=float,rotate=none,block=64", layout);
      for (uint64_t step = 0; step < std::size(kScales); ++step) {
        std::vector<Bytes> gradients =
            make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
              return static_cast<float>(kScales[step] * normal(step + 100 * w, i));
            });
        std::vector<double> lacks = sums(scenario_of(layout), gradients);
        add_kept(workers, layout, 1, lacks);
        ASSERT_TRUE(workers.step(gradients));
        EXPECT_EQ(workers.codec(0).report().rounds, step == 0 ? 2u : 1u);
        add_kept(workers, layout, -1, lacks);
        const double unit = dtype == DType::kF32    ? 0x1p-24
                            : dtype == DType::kBf16 ? 0x1p-9
                                                    : 0x1p-12;
        for (uint64_t i = 0; i < layout.count; ++i) {
          const auto decoded = static_cast<double>(read(dtype, gradients[world - 1], i));
          ASSERT_NEAR(decoded, lacks[i], 2 * unit * std::fabs(decoded) + 2e-6 * world)
              << dtype_name(dtype) << " world " << world << " step " << step << " element " << i;
        }
      }
    }
  }
}

// All that was put in has come back some silent steps later. A narrow sum's own rounding is
// nobody's, and a type's neither.
TEST(QuantLaw, NormsAheadDeliverWhatTheyHeldBackInEveryTypeAndWorld) {
  const std::pair<const char*, double> specs[] = {
      {"quant:norms=ahead,feedback=float", 1e-4},
      {"quant:norms=ahead,feedback=byte,bits=4", 1e-3},
      {"quant:norms=ahead,feedback=float,bits=8,down=8", 0.01}};
  for (const auto& [spec, bound] : specs) {
    for (const DType dtype : kTypes) {
      for (const uint32_t world : {1u, 17u, 18u, 64u}) {
        Layout layout = layout_of(world, 700);
        layout.dtype = dtype;
        Lockstep workers(spec, layout);
        std::vector<double> owed(layout.count, 0.0);
        double energy = 0, left = 0;
        for (uint64_t step = 0; step < 60; ++step) {
          std::vector<Bytes> gradients(world, Bytes(layout.count * dtype_bytes(dtype), 0));
          if (step < 3) gradients = standard_normal(layout, step);
          const std::vector<double> expected = sums(scenario_of(layout), gradients);
          ASSERT_TRUE(workers.step(gradients)) << spec;
          for (uint64_t i = 0; i < layout.count; ++i) {
            owed[i] += expected[i] - static_cast<double>(read(dtype, gradients[0], i));
            energy += expected[i] * expected[i];
          }
        }
        for (const double one : owed)
          left += one * one;
        EXPECT_LE(left, bound * energy) << spec << " " << dtype_name(dtype) << " world " << world;
      }
    }
  }
}

// A job may change how sums come back between two steps, also while workers are missing: what is
// owed is the same. Sums that fit eight bits make the switched run the bits of one that never was.
TEST(QuantLaw, StepsThatSwitchHowSumsComeBackAreThoseOfOneWay) {
  Layout layout = layout_of(3, 5000);
  layout.segments = {{7, 3000}, {3, 2000}};
  const std::string usual = "quant:bits=4,feedback=float,carrier=indices";
  const char* ways[] = {"", ",down=8", ",down=full"};
  Lockstep whole(usual, layout);
  std::vector<std::vector<Bytes>> states;  // of each worker, by segment
  for (uint64_t step = 0; step < 12; ++step) {
    layout.first_step = step;
    Lockstep switched(usual + ways[step % 3], layout);
    for (uint32_t w = 0; w < layout.world; ++w) {
      for (uint64_t s = 0; s < 2 && !states.empty(); ++s)
        ASSERT_TRUE(switched.codec(w).load_segment(s, states[w][s])) << step;
      for (Lockstep* both : {&whole, &switched})
        both->leave_out(w, step % 4 == 1 && w == 2);
    }
    std::vector<Bytes> expected = standard_normal(layout, step), actual = expected;
    ASSERT_TRUE(whole.step(expected) && switched.step(actual));
    ASSERT_EQ(actual, expected) << step;
    states.assign(layout.world, {});
    for (uint32_t w = 0; w < layout.world; ++w) {
      for (uint64_t s = 0; s < 2; ++s)
        states[w].push_back(*switched.codec(w).save_segment(s));
    }
  }
}

// Without rotation a state's residual is the gradient's elements.
TEST(QuantLaw, WithFeedbackWhatASumLacksIsKeptAlsoWhereSumsMayBeNarrow) {
  Layout layout = layout_of(18, 4096);
  layout.network.narrows = true;
  Lockstep workers("quant:feedback=float,rotate=none", layout);
  std::vector<Bytes> gradients = standard_normal(layout, 3);
  std::vector<double> lacks(layout.count, 0.0);
  for (const Bytes& gradient : gradients) {
    for (uint64_t i = 0; i < layout.count; ++i)
      lacks[i] += static_cast<double>(read(DType::kF32, gradient, i));
  }
  ASSERT_TRUE(workers.step(gradients));
  for (uint32_t w = 0; w < layout.world; ++w) {
    Bytes kept = *workers.codec(w).save_state();
    kept.erase(kept.begin(), kept.begin() + 16);
    ASSERT_EQ(kept.size(), 4 * layout.count);
    for (uint64_t i = 0; i < layout.count; ++i)
      lacks[i] -= static_cast<double>(read(DType::kF32, kept, i));
  }
  for (uint64_t i = 0; i < layout.count; ++i)
    ASSERT_NEAR(lacks[i], static_cast<double>(read(DType::kF32, gradients[0], i)), 1e-4) << i;
}

TEST(QuantLaw, FewerBitsTakeFewerBytesBothWays) {
  const Layout layout = layout_of(4, 1 << 16);
  const auto cost = [&](const std::string& spec) {
    auto codec = *create_codec(*CodecSpec::parse(spec), layout);
    const std::vector<float> gradient(layout.count, 1.0f);
    Round round;
    EXPECT_TRUE(codec->begin(gradient.data()));
    EXPECT_TRUE(*codec->next_round(round) && *codec->next_round(round));
    const Plane& plane = round.planes[0];
    const auto bits = [&](uint64_t bytes) {
      return 8 * static_cast<double>(bytes) / static_cast<double>(layout.count);
    };
    return std::pair(bits(op_bytes(plane.op, plane.lanes)),
                     bits(op_sum_bytes(plane.op, plane.lanes)));
  };
  const struct {
    const char* spec;
    double up, down;
  } cases[] = {{"quant:bits=1,down=4", 1, 4}, {"quant:bits=2,down=4", 2, 4},
               {"quant:bits=3,down=4", 3, 4}, {"quant:bits=4,down=4", 4, 4},
               {"quant:bits=4,down=8", 4, 8}, {"quant:bits=6,down=8", 8, 8},
               {"quant:bits=8,down=4", 8, 4}, {"quant:bits=8,down=8", 8, 8}};
  for (const auto& [spec, up, down] : cases) {
    const auto [sent, returned] = cost(spec);
    EXPECT_EQ(sent, up) << spec;
    EXPECT_NEAR(returned, down, 0.1) << spec;
    EXPECT_GE(returned, down) << spec;
  }
}

// A segment of 64 elements in a group of 512 lanes: the others say something in the middle.
TEST(QuantLaw, LanesBetweenSegmentsDoNotWidenAGroupsRange) {
  for (const uint32_t bits : {1u, 2u, 3u, 4u}) {
    Layout layout = layout_of(1, 64);
    layout.segments = {{7, 64}};
    const std::string spec = "quant:down=8,bits=" + std::to_string(bits);
    auto codec = *create_codec(*CodecSpec::parse(spec), layout);
    std::vector<float> gradient(layout.count, 1.0f);
    Round round;
    ASSERT_TRUE(codec->begin(gradient.data()));
    ASSERT_TRUE(*codec->next_round(round) && *codec->next_round(round));
    ASSERT_EQ(round.planes[0].lanes, 512u);
    const auto* bytes = static_cast<const uint8_t*>(round.planes[0].data);
    for (uint64_t lane = 64; lane < 512; ++lane) {
      uint32_t index = 0;
      for (uint32_t bit = 0; bit < bits; ++bit) {
        const uint64_t at = lane * bits + bit;
        index |= static_cast<uint32_t>(bytes[at / 8] >> at % 8 & 1) << bit;
      }
      ASSERT_EQ(index, (1u << (bits - 1)) - 1) << spec << ", lane " << lane;
    }
  }
}

TEST(QuantLaw, NarrowSumsThatNoAdderWritesAreRefused) {
  const Layout layout = layout_of(1, 3000);
  auto codec = *create_codec(*CodecSpec::parse("quant:bits=8,down=4"), layout);
  std::vector<float> gradient(layout.count, 1.0f);
  Round round;
  ASSERT_TRUE(codec->begin(gradient.data()));
  ASSERT_TRUE(*codec->next_round(round) && *codec->next_round(round));
  const Plane& plane = round.planes[0];
  const auto* lanes = static_cast<const uint8_t*>(plane.data);
  fold_tables(plane.op, plane.sums, &lanes, 1, plane.table, plane.lanes);
  auto* second = static_cast<uint8_t*>(plane.sums) + op_sum_bytes(plane.op, 512);
  second[2] = second[3] = 0;  // its step
  ASSERT_FALSE(*codec->next_round(round));
  const Status status = codec->finish(gradient.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kUndecodable);
  EXPECT_NE(status.error().message.find("lane 512"), std::string::npos) << status.error().message;
}

TEST(QuantLaw, FourBitsAndScalesTakeAtMostTwoHundredthsMore) {
  const Layout layout = layout_of(2, uint64_t{1} << 20);
  Lockstep workers("quant:carrier=indices", layout);
  std::vector<Bytes> gradients = standard_normal(layout, 2);
  ASSERT_TRUE(workers.step(gradients, 1));
  const double bits = 8.0 * static_cast<double>(workers.codec(0).report().wire_bytes) / 0x1p20;
  std::printf("carrier=indices: %.5f bits per value\n", bits);
  EXPECT_LE(bits, 4.02);
  EXPECT_GE(bits, 4.0);
}

// What one thread gives; three steps of three buckets.
constexpr uint64_t kBuckets[] = {1, 2049, 6000};

// The scale is a factor of the decoder and nothing else: residuals stay in the gradient's units, so
// that a power of two changes no other bit in any later step.
TEST(QuantLaw, AScaleMultipliesTheResultAndLeavesResidualsAlone) {
  for (const char* spec : {"quant", "quant:feedback=float", "quant:rotate=none,feedback=byte"}) {
    Layout layout = layout_of(2, 3000);
    Lockstep plain(spec, layout);
    layout.scale = 0.25;
    Lockstep scaled(spec, layout);
    for (uint64_t step = 0; step < 10; ++step) {
      std::vector<Bytes> sum = standard_normal(layout, step);
      if (step == 5) write(layout.dtype, sum[0], 9, 0x1p80f);  // a block with a prescale
      std::vector<Bytes> part = sum;
      ASSERT_TRUE(plain.step(sum));
      const auto seen = step_pair(scaled, part, {step % 2 == 1, step % 4 > 1});
      ASSERT_TRUE(seen) << seen.error().message;
      ASSERT_EQ(seen->rounds.size(), 2u);
      EXPECT_FALSE(seen->rounds[0].last);
      EXPECT_TRUE(seen->rounds[1].last);
      for (uint64_t i = 0; i < layout.count; ++i) {
        ASSERT_EQ(read(layout.dtype, part[1], i), 0.25f * read(layout.dtype, sum[1], i))
            << spec << " step " << step << " element " << i;
      }
    }
  }
}

TEST(QuantLaw, ASegmentsResultDoesNotDependOnItsBucketOrderOrRestarts) {
  for (const char* spec :
       {"quant", "quant:feedback=float", "quant:feedback=byte", "quant:feedback=float,block=64",
        "quant:bits=auto,feedback=byte", "quant:block=whole,feedback=float",
        "quant:rotate=none,feedback=float", "quant:carrier=indices,rounding=independent",
        "quant:index=auto,feedback=float", "quant:bits=8,down=4,feedback=float",
        "quant:bits=2,down=4,block=64", "quant:norms=ahead,feedback=float",
        "quant:norms=ahead,feedback=byte,block=64"}) {
    for (uint64_t seed = 1; seed < 4; ++seed) {
      check_regrouping(spec, seed == 3 ? DType::kF16 : DType::kF32, seed);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(QuantLaw, ThreadsThroughThePipelineInAnyOrderGiveTheBitsOfOneThread) {
  constexpr uint32_t kWorld = 4;
  for (const std::string spec :
       {"quant", "quant:carrier=indices,feedback=byte", "quant:bits=auto",
        "quant:bits=8,down=4,feedback=float", "quant:norms=ahead,feedback=byte"}) {
    std::array<std::vector<std::vector<Bytes>>, 3> expected;  // by bucket, step, worker
    for (std::size_t b = 0; b < 3; ++b) {
      Layout layout = layout_of(kWorld, kBuckets[b]);
      layout.bucket = b;
      Lockstep alone(spec, layout);
      for (uint64_t step = 0; step < 3; ++step) {
        expected[b].push_back(standard_normal(layout, step));
        ASSERT_TRUE(alone.step(expected[b].back()));
      }
    }
    for (const FoldOrder order : {FoldOrder::kSequential, FoldOrder::kPermuted, FoldOrder::kTree}) {
      spawn_workers(kWorld, {order, 99}, [&](uint32_t w, Reducer& reducer) {
        auto pipeline = create_pipeline(reducer);
        ASSERT_TRUE(pipeline);
        std::vector<std::unique_ptr<Codec>> codecs;
        for (std::size_t b = 0; b < 3; ++b) {
          Layout layout = layout_of(kWorld, kBuckets[b]);
          layout.bucket = b;
          layout.worker = w;
          codecs.push_back(std::move(*create_codec(*CodecSpec::parse(spec), layout)));
        }
        for (uint64_t step = 0; step < 3; ++step) {
          std::vector<Bytes> gradients;
          std::vector<Ticket> tickets;
          for (std::size_t b = 0; b < 3; ++b)
            gradients.push_back(standard_normal(codecs[b]->layout(), step)[w]);
          for (std::size_t b = 0; b < 3; ++b)
            tickets.push_back(*(*pipeline)->submit(*codecs[b], gradients[b].data()));
          for (std::size_t b = 0; b < 3; ++b) {
            ASSERT_TRUE((*pipeline)->wait(tickets[b]));
            EXPECT_EQ(gradients[b], expected[b][step][w])
                << spec << " worker " << w << " bucket " << b << " step " << step;
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace addend::testing_support
