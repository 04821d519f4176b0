// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/own.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/bits.h"
#include "wire/hash.h"

namespace addend::exact {
namespace {

// A gradient with runs of non-zeros, and its non-zeros.
struct Own {
  std::vector<float> gradient;
  std::vector<uint64_t> bitmap;
  std::vector<float> values;

  Own(uint64_t count, uint64_t run, uint64_t one_in, uint64_t seed)
      : gradient(count), bitmap(words_for(count)) {
    for (uint64_t i = 0; i < count; ++i) {
      if (addend_random(seed, i / run) % one_in != 0) continue;
      gradient[i] = static_cast<float>(1 + i % 1000);
      set_bit(bitmap.data(), i);
      values.push_back(gradient[i]);
    }
  }
  NonZeros nonzeros() const { return {bitmap.data(), values.data(), gradient.size()}; }
  std::vector<uint64_t> message() const {
    std::vector<uint64_t> lanes(own_lanes(nonzeros(), values.size(), 4));
    write_own(nonzeros(), values.size(), DType::kF32, 1, lanes.data());
    return lanes;
  }
};

TEST(OwnMessage, SaysWhereAndWhatItsNonZerosAre) {
  for (const uint64_t count : {1, 63, 64, 65, 128, 1000, 100003}) {
    for (const uint64_t run : {1, 2, 16, 64, 1000}) {
      for (const uint64_t one_in : {1, 2, 50}) {
        const Own own(count, run, one_in, count + run);
        const std::vector<uint64_t> lanes = own.message();
        const auto message = OwnMessage::read(lanes.data(), lanes.size(), count, DType::kF32);
        ASSERT_TRUE(message) << count << " " << run << " " << one_in;
        std::vector<uint64_t> bitmap(words_for(count));
        message->mark(bitmap.data());
        EXPECT_EQ(bitmap, own.bitmap);
        std::vector<float> sums(count, 1);
        message->add_to(sums.data());
        for (uint64_t i = 0; i < count; ++i)
          ASSERT_EQ(sums[i], 1 + own.gradient[i]);
      }
    }
  }
}

TEST(OwnMessage, TakesTwoBytesForARowAndOneOrTwoForANonZeroByItself) {
  const auto index_bytes = [](const Own& own) { return own.message()[1]; };
  const Own rows(1 << 16, 64, 8, 1);
  EXPECT_LE(index_bytes(rows), rows.values.size() / 64 * 4);
  const Own apart(1 << 16, 1, 100, 1);
  EXPECT_LE(static_cast<double>(index_bytes(apart)),
            1.7 * static_cast<double>(apart.values.size()));
}

TEST(OwnMessage, IsRefusedWhereItIsNone) {
  const uint64_t count = 1000;
  const Own own(count, 3, 5, 1);
  const std::vector<uint64_t> good = own.message();
  const auto refused = [&](const std::vector<uint64_t>& lanes, uint64_t elements) {
    const auto message = OwnMessage::read(lanes.data(), lanes.size(), elements, DType::kF32);
    return !message && message.error().code == Errc::kUndecodable;
  };
  EXPECT_TRUE(refused(good, count / 2)) << "positions beyond the end";
  for (const uint64_t lane : {0, 1}) {
    for (const uint64_t value : {uint64_t{0}, good[lane] + 1, good[lane] - 1, ~uint64_t{0}}) {
      std::vector<uint64_t> bad = good;
      bad[lane] = value;
      EXPECT_TRUE(refused(bad, count)) << lane << " " << value;
    }
  }
  std::vector<uint64_t> bad = good;
  bad[2] = ~uint64_t{0};
  EXPECT_TRUE(refused(bad, count)) << "numbers without an end";
  bad = good;
  bad.pop_back();
  EXPECT_TRUE(refused(bad, count));
  EXPECT_TRUE(refused({good[0]}, count));
  EXPECT_FALSE(refused({}, count));
}

}  // namespace
}  // namespace addend::exact
