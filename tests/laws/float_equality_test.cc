// SPDX-License-Identifier: Apache-2.0
// Float values: packed forms give bit for bit what the dense sum gives in the same order.
// Reproducible values: bit for bit the same in every order, and equal to the exact sum rounded
// once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

__extension__ typedef __float128 quad;

std::vector<Bytes> normal_gradients(const Scenario& s, double sigma) {
  return make_gradients(s, [&](uint32_t w, uint64_t i) {
    return static_cast<float>(1e-2 * normal(s.seed + w, i) *
                              std::exp(sigma * normal(s.seed + 99 + w, i)));
  });
}

TEST(FloatValues, PackedAndTwoLevelEqualTheDenseSumBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const double density : {0.01, 0.3, 1.0}) {
      const Scenario s{dtype, 9001, 7, density, Overlap::kRandom, 3};
      const std::vector<Bytes> gradients = normal_gradients(s, 2);
      std::vector<Bytes> dense = gradients;
      Lockstep baseline("dense", layout_of(s));
      ASSERT_TRUE(baseline.step(dense));
      for (const char* spec :
           {"exact:mode=packed", "exact:mode=two-level", "exact:mode=gather", "exact"}) {
        std::vector<Bytes> sums = gradients;
        Lockstep workers(spec, layout_of(s));
        ASSERT_TRUE(workers.step(sums));
        for (uint64_t i = 0; i < s.count; ++i) {
          // == rather than bits: where everything is -0.0, exact gives +0.0.
          ASSERT_EQ(read(dtype, sums[0], i), read(dtype, dense[0], i))
              << spec << " " << dtype_name(dtype) << " " << i;
        }
      }
    }
  }
}

// The representable value nearest to an exact sum, by comparing neighbours.
float nearest(DType dtype, quad exact) {
  const auto as_bits = [&](float value) {
    if (dtype == DType::kF32) return addend_f32_bits(value);
    return static_cast<uint32_t>(dtype == DType::kBf16 ? addend_bf16_from_f32(value)
                                                       : addend_f16_from_f32(value));
  };
  const auto as_float = [&](uint32_t bits) {
    if (dtype == DType::kF32) return addend_f32_from_bits(bits);
    const auto half = static_cast<uint16_t>(bits);
    return dtype == DType::kBf16 ? addend_f32_from_bf16(half) : addend_f32_from_f16(half);
  };
  const uint32_t guess = as_bits(static_cast<float>(exact));
  const auto distance = [&](uint32_t bits) {
    const quad difference = static_cast<quad>(as_float(bits)) - exact;
    return difference < 0 ? -difference : difference;
  };
  uint32_t best = guess;
  for (const uint32_t other : {guess - 1, guess + 1}) {
    if (!std::isfinite(as_float(other)) || (other & ~1u) == (as_bits(-0.0f) & ~1u)) continue;
    if (distance(other) < distance(best) || (distance(other) == distance(best) && (other & 1) == 0))
      best = other;
  }
  return as_float(best);
}

TEST(ReproducibleValues, EqualTheExactSumRoundedOnce) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const double sigma : {0.0, 3.0, 8.0}) {
      for (const char* spec :
           {"exact:mode=packed,values=reproducible", "exact:mode=two-level,values=reproducible",
            "exact:mode=sketch,values=reproducible,density=0.4"}) {
        const Scenario s{dtype, 3001, 6, 0.1, Overlap::kRandom, 8};
        std::vector<Bytes> gradients =
            normal_gradients(s, dtype == DType::kF16 ? sigma / 4 : sigma);
        std::vector<quad> exact(s.count, 0);
        for (const Bytes& gradient : gradients) {
          for (uint64_t i = 0; i < s.count; ++i)
            exact[i] += static_cast<quad>(read(dtype, gradient, i));
        }
        Lockstep workers(spec, layout_of(s));
        ASSERT_TRUE(workers.step(gradients));
        for (uint64_t i = 0; i < s.count; ++i) {
          ASSERT_EQ(read(dtype, gradients[0], i), nearest(dtype, exact[i]))
              << spec << " " << dtype_name(dtype) << " sigma " << sigma << " element " << i;
        }
      }
    }
  }
}

uint64_t hash_of(const Bytes& bytes) {
  uint64_t state = bytes.size();
  for (const uint8_t byte : bytes)
    state = addend_mix64(state + byte + 1);
  return state;
}

// Real threads, real reducers, every fold order.
std::vector<uint64_t> hashes_after_all_reduce(const std::string& spec, const Scenario& s,
                                              const LocalOptions& options) {
  auto group = create_local_group(s.world, options);
  EXPECT_TRUE(group);
  std::vector<Bytes> gradients = normal_gradients(s, 4);
  std::vector<uint64_t> hashes(s.world);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < s.world; ++w) {
    threads.emplace_back([&, w] {
      const auto reducer = (*group)->reducer(w);
      auto pipeline = create_pipeline(*reducer);
      auto codec = create_codec(*CodecSpec::parse(spec), layout_of(s, w));
      const auto ticket = (*pipeline)->submit(**codec, gradients[w].data());
      EXPECT_TRUE(ticket);
      const Status done = (*pipeline)->wait(*ticket);
      EXPECT_TRUE(done) << done.error().message;
      hashes[w] = hash_of(gradients[w]);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return hashes;
}

TEST(ReproducibleValues, HashEqualOnAllRanksForEveryFoldOrder) {
  const Scenario s{DType::kF32, 20000, 9, 0.2, Overlap::kRandom, 4};
  for (const char* spec : {"exact:mode=packed,values=reproducible",
                           "exact:mode=sketch,values=reproducible,density=0.9"}) {
    uint64_t first = 0;
    for (const FoldOrder order : {FoldOrder::kSequential, FoldOrder::kPermuted, FoldOrder::kTree}) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        for (const uint64_t hash : hashes_after_all_reduce(spec, s, {order, seed})) {
          if (first == 0) first = hash;
          ASSERT_EQ(hash, first) << spec << " order " << static_cast<int>(order) << " seed "
                                 << seed;
        }
      }
    }
  }
}

TEST(FloatValues, DependOnTheFoldOrderWhichIsWhyReproducibleExists) {
  const Scenario s{DType::kF32, 20000, 9, 0.2, Overlap::kRandom, 4};
  const uint64_t one =
      hashes_after_all_reduce("exact:mode=packed", s, {FoldOrder::kPermuted, 1})[0];
  const uint64_t two =
      hashes_after_all_reduce("exact:mode=packed", s, {FoldOrder::kPermuted, 2})[0];
  EXPECT_NE(one, two);
}

}  // namespace
}  // namespace addend::testing_support
