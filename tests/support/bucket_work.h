// SPDX-License-Identifier: Apache-2.0
// Gradients of a few workers, codecs for them, and what their sums must be.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addend/codec.h"
#include "gtest/gtest.h"
#include "wire/hash.h"

namespace addend::testing_support {

inline std::unique_ptr<Codec> make_codec(const std::string& spec, uint64_t count, uint32_t world,
                                         uint64_t bucket, uint32_t worker) {
  Layout layout;
  layout.worker = worker;
  layout.count = count;
  layout.world = world;
  layout.bucket = bucket;
  auto codec = create_codec(*CodecSpec::parse(spec), layout);
  EXPECT_TRUE(codec);
  return std::move(*codec);
}

inline std::vector<float> gradient_of(uint32_t worker, uint64_t bucket, uint64_t count) {
  std::vector<float> gradient(count, 0.0f);
  for (uint64_t i = 0; i < count; ++i) {
    if (addend_random(worker * 131 + bucket, i) % 10 == 0)
      gradient[i] = static_cast<float>(worker + bucket + 1);
  }
  return gradient;
}

inline std::vector<float> sum_of(uint32_t world, uint64_t bucket, uint64_t count) {
  std::vector<float> sum(count, 0.0f);
  for (uint32_t w = 0; w < world; ++w) {
    const std::vector<float> one = gradient_of(w, bucket, count);
    for (uint64_t i = 0; i < count; ++i)
      sum[i] += one[i];
  }
  return sum;
}

}  // namespace addend::testing_support
