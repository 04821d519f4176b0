// SPDX-License-Identifier: Apache-2.0
#include "codec/convert.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "wire/element.h"
#include "wire/hash.h"

namespace addend {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
constexpr float kFactors[] = {0.5f, 1.0f / 3, 0.1f, 3.0f, 0x1p-20f, 1e30f};

// NaN payloads are outside the formats, so any NaN equals any other.
bool same(float a, float b) {
  return addend_f32_bits(a) == addend_f32_bits(b) || (std::isnan(a) && std::isnan(b));
}

// Every pattern of 16 bits, or as many random ones of 32.
std::vector<uint8_t> patterns(DType dtype) {
  std::vector<uint8_t> bytes(65536 * dtype_bytes(dtype));
  for (uint64_t i = 0; i < 65536; ++i) {
    const uint64_t pattern = dtype == DType::kF32 ? addend_random(4, i) : i;
    std::memcpy(bytes.data() + i * dtype_bytes(dtype), &pattern, dtype_bytes(dtype));
  }
  return bytes;
}

float rounded(DType dtype, float product) {
  if (dtype == DType::kF32) return product;
  return dtype == DType::kBf16 ? addend_f32_from_bf16(addend_bf16_from_f32(product))
                               : addend_f32_from_f16(addend_f16_from_f32(product));
}

class ConvertOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_simd_target(GetParam())); }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

TEST_P(ConvertOnTarget, RoundsEveryPatternAsTheConversionsSay) {
  for (const DType dtype : kTypes) {
    const std::vector<uint8_t> from = patterns(dtype);
    for (const float factor : kFactors) {
      std::vector<uint8_t> to(from.size()), in_place = from;
      multiply(dtype, from.data(), 65536, factor, to.data());
      multiply(dtype, in_place.data(), 65536, factor, in_place.data());
      for (uint64_t i = 0; i < 65536; ++i) {
        const float product = rounded(dtype, load_float(dtype, from.data(), i) * factor);
        ASSERT_TRUE(same(load_float(dtype, to.data(), i), product))
            << dtype_name(dtype) << " pattern " << i << " times " << factor;
        ASSERT_TRUE(same(load_float(dtype, in_place.data(), i), product));
      }
    }
  }
}

TEST_P(ConvertOnTarget, TurnsEveryPatternOfEveryTypeIntoEveryOther) {
  for (const DType from_type : kTypes) {
    const std::vector<uint8_t> from = patterns(from_type);
    for (const DType to_type : kTypes) {
      for (const float factor : {1.0f, 1.0f / 3}) {
        std::vector<uint8_t> to(65536 * dtype_bytes(to_type));
        convert(from_type, from.data(), 65535, factor, to_type, to.data());
        for (uint64_t i = 0; i < 65535; ++i) {
          const float product = load_float(from_type, from.data(), i) * factor;
          ASSERT_TRUE(same(load_float(to_type, to.data(), i), rounded(to_type, product)))
              << dtype_name(from_type) << " to " << dtype_name(to_type) << " pattern " << i;
        }
        for (uint64_t b = 65535 * dtype_bytes(to_type); b < to.size(); ++b)
          ASSERT_EQ(to[b], 0) << "beyond the end";
      }
    }
  }
}

TEST_P(ConvertOnTarget, CoversEveryLengthAndNothingBeyond) {
  for (const DType dtype : kTypes) {
    const std::vector<uint8_t> ones = [&] {
      std::vector<uint8_t> bytes(100 * dtype_bytes(dtype));
      for (uint64_t i = 0; i < 100; ++i)
        store_float(dtype, bytes.data(), i, 1);
      return bytes;
    }();
    for (uint64_t count = 0; count < 100; ++count) {
      std::vector<uint8_t> to = ones;
      multiply(dtype, ones.data(), count, 4, to.data());
      for (uint64_t i = 0; i < 100; ++i)
        ASSERT_EQ(load_float(dtype, to.data(), i), i < count ? 4 : 1) << count;
    }
  }
}

TEST_P(ConvertOnTarget, ByOneKeepsEveryBit) {
  for (const DType dtype : kTypes) {
    const std::vector<uint8_t> from = patterns(dtype);
    std::vector<uint8_t> to(from.size()), in_place = from;
    multiply(dtype, from.data(), 65536, 1, to.data());
    multiply(dtype, in_place.data(), 65536, 1, in_place.data());
    EXPECT_EQ(to, from);
    EXPECT_EQ(in_place, from);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConvertOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace addend
