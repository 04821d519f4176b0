// SPDX-License-Identifier: Apache-2.0
// Laws of floats as integers: how far a sum may be from the exact one, for every type and world;
// what is exact; what NaN, infinities, zeros and subnormals become; the same bits on every target.
#include "reduce/service/shared_exponent.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "addend/fold.h"
#include "addend/simd.h"
#include "base/bits.h"
#include "gtest/gtest.h"
#include "tests/support/exact_sum.h"
#include "tests/support/gradients.h"
#include "wire/element.h"

namespace addend::service_client {
namespace {

using testing_support::element;
using testing_support::ExactSum;

using Lanes = std::vector<uint8_t>;
constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
constexpr uint64_t kLanes = 2 * kExponentBlock + 77;

/// The lane i of worker w.
using Fill = std::function<float(uint32_t w, uint64_t i)>;

Lanes lanes_of(DType dtype, const Fill& fill, uint32_t worker, uint64_t count = kLanes) {
  Lanes lanes(count * dtype_bytes(dtype));
  for (uint64_t i = 0; i < count; ++i)
    store_float(dtype, lanes.data(), i, fill(worker, i));
  return lanes;
}

Round round_of(DType dtype, Lanes& lanes) {
  Round round;
  round.add({sum_op(dtype), lanes.size() / dtype_bytes(dtype), lanes.data(), nullptr, nullptr});
  return round;
}

// Folds the rounds of all workers, the last one first if `backwards`, and gives all the sum.
void reduce(std::vector<Round>& rounds, bool backwards) {
  const std::size_t first = backwards ? rounds.size() - 1 : 0;
  for (std::size_t p = 0; p < rounds[0].size; ++p) {
    Plane& sum = rounds[first].planes[p];
    for (std::size_t k = 1; k < rounds.size(); ++k)
      ASSERT_TRUE(fold(sum, rounds[backwards ? first - k : k].planes[p]));
    for (Round& round : rounds) {
      if (round.planes[p].data != sum.data)
        std::memcpy(round.planes[p].data, sum.data, op_bytes(sum.op, sum.lanes));
    }
  }
}

// What all workers' lanes become.
std::vector<Lanes> sum_up(DType dtype, std::vector<Lanes> lanes, bool backwards = false) {
  const auto world = static_cast<uint32_t>(lanes.size());
  std::vector<IntegerRounds> workers(world);
  std::vector<Round> originals(world), travelling(world);
  for (uint32_t w = 0; w < world; ++w) {
    originals[w] = round_of(dtype, lanes[w]);
    EXPECT_TRUE(workers[w].begin(originals[w], world, travelling[w]));
  }
  reduce(travelling, backwards);
  for (uint32_t w = 0; w < world; ++w)
    EXPECT_TRUE(workers[w].quantise(travelling[w]));
  reduce(travelling, backwards);
  for (IntegerRounds& worker : workers)
    worker.finish();
  return lanes;
}

// Half of a type's step at a number of this size, and of f32's, through which it was rounded.
double rounding(DType dtype, double value) {
  const int mantissa = dtype == DType::kF32 ? 24 : dtype == DType::kBf16 ? 8 : 11;
  const int floor = dtype == DType::kF32 ? -149 : dtype == DType::kBf16 ? -133 : -24;
  const int step = std::max(value == 0 ? floor : std::ilogb(value) + 1 - mantissa, floor);
  return std::ldexp(0.5, step) * (1 + 0x1p-12);
}

double largest_finite(DType dtype) {
  return dtype == DType::kF16 ? 65504.0 : dtype == DType::kBf16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
}

// The bound of docs/formats/planes.md: world x 2^(r - 32) x 2^(e + 1), where 2^e is the power of
// two of the block's largest magnitude, and then the type's rounding.
void expect_within_bound(DType dtype, const std::vector<Lanes>& in, const Lanes& out,
                         const std::string& what) {
  const auto world = static_cast<uint32_t>(in.size());
  const uint64_t count = out.size() / dtype_bytes(dtype);
  for (uint64_t begin = 0; begin < count; begin += kExponentBlock) {
    const uint64_t end = std::min(begin + kExponentBlock, count);
    double largest = 0;
    for (const Lanes& lanes : in) {
      for (uint64_t i = begin; i < end; ++i)
        largest = std::max(largest, std::abs(double{element(dtype, lanes.data(), i)}));
    }
    const int top = largest == 0 ? -126 : std::max(std::ilogb(largest), -126);
    const auto room = static_cast<int>(ceil_log2(world > 128 ? world + 1 : world));
    const double bound = std::ldexp(static_cast<double>(world), top + 1 - 32 + room);
    for (uint64_t i = begin; i < end; ++i) {
      ExactSum exact;
      for (const Lanes& lanes : in)
        exact.add(element(dtype, lanes.data(), i));
      const double expected = exact.value();
      const double actual = double{element(dtype, out.data(), i)};
      if (std::isinf(actual)) {
        ASSERT_GT(std::abs(expected) + bound, largest_finite(dtype)) << what << ", lane " << i;
        ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << what << ", lane " << i;
        continue;
      }
      ASSERT_LE(std::abs(actual - expected), bound + rounding(dtype, std::abs(expected) + bound))
          << what << ", lane " << i;
    }
  }
}

struct Scenario {
  const char* name;
  Fill fill;
};

double normal(uint32_t w, uint64_t i) { return testing_support::normal(900 + w, i); }

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"ordinary", [](uint32_t w, uint64_t i) { return static_cast<float>(normal(w, i)); }},
      {"zeros", [](uint32_t, uint64_t) { return 0.0f; }},
      {"one worker only",
       [](uint32_t w, uint64_t i) { return w == 0 ? static_cast<float>(normal(w, i)) : 0.0f; }},
      {"tiny", [](uint32_t w, uint64_t i) { return static_cast<float>(normal(w, i) * 0x1p-120); }},
      {"subnormal",
       [](uint32_t w, uint64_t i) { return static_cast<float>(normal(w, i) * 0x1p-135); }},
      {"half subnormal",
       [](uint32_t w, uint64_t i) { return static_cast<float>(normal(w, i) * 0x1p-19); }},
      {"huge", [](uint32_t w, uint64_t i) { return static_cast<float>(normal(w, i) * 0x1p118); }},
      {"huge for halves",
       [](uint32_t w, uint64_t i) { return static_cast<float>(normal(w, i) * 8000); }},
      {"all ranges at once",
       [](uint32_t w, uint64_t i) {
         const int exponent = static_cast<int>(addend_random(w, i) % 200) - 149;
         return static_cast<float>(std::ldexp(normal(w, i), exponent));
       }},
      {"workers of other sizes",
       [](uint32_t w, uint64_t i) {
         return static_cast<float>(std::ldexp(normal(w, i), -static_cast<int>(w % 30)));
       }},
  };
  return all;
}

bool all_finite(DType dtype, const Lanes& lanes) {
  for (uint64_t i = 0; i < lanes.size() / dtype_bytes(dtype); ++i) {
    if (!std::isfinite(element(dtype, lanes.data(), i))) return false;
  }
  return true;
}

TEST(SharedExponent, SumsAreWithinTheBoundAndTheSameInAnyOrder) {
  uint32_t checked = 0;
  for (const DType dtype : kTypes) {
    for (uint32_t world = 1; world <= 64; world += world < 9 ? 1 : 11) {
      for (const Scenario& scenario : scenarios()) {
        std::vector<Lanes> in;
        bool finite = true;
        for (uint32_t w = 0; w < world; ++w) {
          in.push_back(lanes_of(dtype, scenario.fill, w));
          finite = finite && all_finite(dtype, in.back());
        }
        if (!finite) continue;  // beyond the type
        const std::string what = std::string(scenario.name) + " of " + dtype_name(dtype) + ", " +
                                 std::to_string(world) + " workers";
        const std::vector<Lanes> out = sum_up(dtype, in);
        const std::vector<Lanes> backwards = sum_up(dtype, in, true);
        expect_within_bound(dtype, in, out[0], what);
        for (uint32_t w = 0; w < world; ++w) {
          ASSERT_EQ(out[w], out[0]) << what;
          ASSERT_EQ(backwards[w], out[0]) << what;
        }
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 3 * 14 * 7u);
}

TEST(SharedExponent, SumsOfAWholeTreeAreWithinTheBound) {
  for (const DType dtype : kTypes) {
    for (const uint32_t world : {65u, 256u, 1000u, 4096u}) {
      std::vector<Lanes> in;
      for (uint32_t w = 0; w < world; ++w)
        in.push_back(lanes_of(dtype, scenarios()[0].fill, w, 50));
      const std::vector<Lanes> out = sum_up(dtype, in);
      expect_within_bound(dtype, in, out[0], std::to_string(world) + " workers");
      for (const Lanes& lanes : out)
        ASSERT_EQ(lanes, out[0]) << world;
    }
  }
}

// The largest numbers: multiples as large as they can be.
TEST(SharedExponent, IntegersDoNotOverflow) {
  for (const DType dtype : kTypes) {
    for (uint32_t world = 1; world <= 4096; ++world) {
      for (const double largest : {largest_finite(dtype), 1 - 0x1p-24, -(2 - 0x1p-23)}) {
        Lanes lanes = lanes_of(
            dtype, [&](uint32_t, uint64_t) { return static_cast<float>(largest); }, 0, 300);
        if (!all_finite(dtype, lanes)) continue;
        uint32_t exponents[2];
        std::vector<int32_t> quanta(300);
        measure_exponents(dtype, lanes.data(), 300, exponents);
        to_quanta(dtype, lanes.data(), 300, exponents, world, quanta.data());
        const int64_t sum = int64_t{quanta[7]} * world;
        ASSERT_LE(std::abs(sum), int64_t{INT32_MAX}) << dtype_name(dtype) << " " << world;
        ASSERT_GE(std::abs(sum), int64_t{1} << 28) << "room is wasted";
        for (const int32_t q : quanta)
          ASSERT_EQ(q, quanta[7]);
      }
    }
  }
}

// Half floats that lie near enough to the largest of their block lose nothing: 25 bits hold the 8
// (11) of a lane that is 2^17 (2^14) times smaller.
TEST(SharedExponent, SumsOfHalvesAreRoundedOnlyOnTheWayBack) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const int range = dtype == DType::kBf16 ? 16 : 13;
    std::vector<Lanes> in;
    for (uint32_t w = 0; w < 64; ++w) {
      in.push_back(lanes_of(
          dtype,
          [&](uint32_t worker, uint64_t i) {
            const double mantissa = 1 + testing_support::uniform(worker, i) * 0.99;
            const auto down =
                static_cast<int>(addend_random(worker + 77, i) % static_cast<uint64_t>(range));
            return static_cast<float>(std::ldexp(i % 2 == 0 ? mantissa : -mantissa, -down));
          },
          w));
    }
    const std::vector<Lanes> out = sum_up(dtype, in);
    for (uint64_t i = 0; i < kLanes; ++i) {
      ExactSum exact;
      for (const Lanes& lanes : in)
        exact.add(element(dtype, lanes.data(), i));
      Lanes expected(4);
      store_float(dtype, expected.data(), 0, exact.round(DType::kF32));
      ASSERT_EQ(element(dtype, out[0].data(), i), element(dtype, expected.data(), 0)) << i;
    }
  }
}

TEST(SharedExponent, ANumberThatIsNotFiniteMakesItsBlockNaNAndNoOther) {
  for (const DType dtype : kTypes) {
    for (const float bad : {INFINITY, -INFINITY, std::nanf("")}) {
      std::vector<Lanes> in;
      for (uint32_t w = 0; w < 3; ++w) {
        in.push_back(lanes_of(
            dtype,
            [&](uint32_t worker, uint64_t i) {
              return worker == 1 && i == kExponentBlock + 200 ? bad : 1.5f;
            },
            w));
      }
      for (const Lanes& out : sum_up(dtype, in)) {
        for (uint64_t i = 0; i < kLanes; ++i) {
          const float value = element(dtype, out.data(), i);
          if (i / kExponentBlock == 1) {
            ASSERT_TRUE(std::isnan(value)) << i;
          } else {
            ASSERT_EQ(value, 4.5f) << i;
          }
        }
      }
    }
  }
}

TEST(SharedExponent, SumsBeyondTheTypeAreInfinite) {
  for (const DType dtype : kTypes) {
    const auto largest = static_cast<float>(largest_finite(dtype));
    std::vector<Lanes> in(
        2, lanes_of(
               dtype, [&](uint32_t, uint64_t i) { return i % 2 == 0 ? largest : -largest; }, 0));
    const std::vector<Lanes> out = sum_up(dtype, in);
    EXPECT_EQ(element(dtype, out[0].data(), 0), INFINITY);
    EXPECT_EQ(element(dtype, out[0].data(), 1), -INFINITY);
  }
}

// An aggregator that lost this worker's exponents must not get its lanes as wrapped integers.
TEST(SharedExponent, AnExponentBelowOnesOwnIsAnError) {
  Lanes lanes = lanes_of(
      DType::kF32, [](uint32_t, uint64_t) { return 3.0f; }, 0);
  const Lanes before = lanes;
  Round round = round_of(DType::kF32, lanes), travelling;
  IntegerRounds rounds;
  ASSERT_TRUE(rounds.begin(round, 2, travelling));
  --static_cast<uint32_t*>(travelling.planes[0].data)[1];
  const Status status = rounds.quantise(travelling);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kUndecodable);
  EXPECT_EQ(lanes, before);
  // Unless it is known to have been left out: then it adds nothing, and reads the others' sums.
  ASSERT_TRUE(rounds.quantise(travelling, true));
  auto* quanta = static_cast<int32_t*>(travelling.planes[0].data);
  for (uint64_t i = 0; i < kLanes; ++i)
    ASSERT_EQ(quanta[i], 0);
  quanta[kExponentBlock] = 1 << 29;
  rounds.finish();
  EXPECT_EQ(element(DType::kF32, lanes.data(), kExponentBlock), 1.0f);
  EXPECT_EQ(element(DType::kF32, lanes.data(), 0), 0.0f);
}

TEST(SharedExponent, OtherPlanesTravelAsTheyAreAndFloatsStayUntilTheEnd) {
  Lanes floats = lanes_of(
      DType::kF32, [](uint32_t, uint64_t i) { return static_cast<float>(i); }, 0);
  Lanes halves = lanes_of(
      DType::kBf16, [](uint32_t, uint64_t) { return 0.5f; }, 0, 3);
  const Lanes before = floats;
  uint64_t bits = 5;
  Round round, travelling;
  round.add({Op::kSumBf16, 3, halves.data(), nullptr, nullptr});
  round.add({Op::kOrU64, 1, &bits, nullptr, nullptr});
  round.add({Op::kSumF32, kLanes, floats.data(), nullptr, nullptr});
  round.add({Op::kSumF32, 0, nullptr, nullptr, nullptr});
  IntegerRounds rounds;
  ASSERT_TRUE(rounds.begin(round, 1, travelling));
  ASSERT_EQ(travelling.size, 3u);
  const uint64_t blocks[] = {1, 3, 0};
  for (std::size_t p = 0; p < 3; ++p) {
    EXPECT_EQ(travelling.planes[p].op, Op::kMaxU32);
    EXPECT_EQ(travelling.planes[p].lanes, blocks[p]);
  }
  ASSERT_TRUE(rounds.quantise(travelling));
  ASSERT_EQ(travelling.size, 4u);
  EXPECT_EQ(travelling.planes[1].op, Op::kOrU64);
  EXPECT_EQ(travelling.planes[1].data, &bits);
  for (const std::size_t p : {0, 2, 3}) {
    EXPECT_EQ(travelling.planes[p].op, Op::kSumI32);
    EXPECT_EQ(travelling.planes[p].lanes, round.planes[p].lanes);
  }
  EXPECT_EQ(floats, before);
  rounds.finish();
  EXPECT_EQ(floats, before);  // a world of one: all these fit
}

// Any bits as lanes, any exponents at or above their own, any integers as sums.
TEST(SharedExponent, EveryTargetGivesTheScalarBits) {
  constexpr uint64_t kCount = 5 * kExponentBlock + 31;
  for (const DType dtype : kTypes) {
    for (const uint32_t world : {1u, 3u, 64u}) {
      Lanes lanes(kCount * dtype_bytes(dtype));
      for (uint64_t i = 0; i < lanes.size(); ++i)
        lanes[i] = static_cast<uint8_t>(addend_random(world, i));
      // One lane in a hundred or so of random bits is not finite: leave such blocks, but not only.
      for (uint64_t i = 0; i < 3 * kExponentBlock; ++i) {
        const float value = element(dtype, lanes.data(), i);
        store_float(dtype, lanes.data(), i, std::isfinite(value) ? std::ldexp(value, -3) : 1.0f);
      }
      std::vector<std::vector<uint32_t>> exponents;
      std::vector<std::vector<int32_t>> quanta;
      std::vector<Lanes> out;
      for (const std::string& target : simd_targets()) {
        ASSERT_TRUE(force_simd_target(target));
        exponents.emplace_back(ceil_div(kCount, kExponentBlock));
        measure_exponents(dtype, lanes.data(), kCount, exponents.back().data());
        std::vector<uint32_t> shared = exponents.back();
        shared[1] += shared[1] < 250 ? 4 : 0;
        quanta.emplace_back(kCount);
        to_quanta(dtype, lanes.data(), kCount, shared.data(), world, quanta.back().data());
        out.emplace_back(lanes.size());
        std::vector<int32_t> sums(kCount);
        for (uint64_t i = 0; i < kCount; ++i)
          sums[i] = static_cast<int32_t>(addend_random(5, i) >> (32 + addend_random(6, i) % 32));
        shared[4] = 1;
        shared[3] = 253;
        from_quanta(dtype, sums.data(), kCount, shared.data(), world, out.back().data());
      }
      ASSERT_TRUE(force_simd_target(""));
      for (std::size_t t = 1; t < out.size(); ++t) {
        EXPECT_EQ(exponents[t], exponents[0]);
        EXPECT_EQ(quanta[t], quanta[0]);
        EXPECT_EQ(out[t], out[0]);
      }
    }
  }
}

}  // namespace
}  // namespace addend::service_client
