// SPDX-License-Identifier: Apache-2.0
#include "codec/index/kernels.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "base/bits.h"
#include "base/buffer.h"
#include "codec/index/kernels_reference.h"
#include "wire/hash.h"

namespace addend::index {
namespace {

constexpr uint64_t kLengths[] = {0, 1, 63, 64, 65, 127, 1000, 4099, 100003};
constexpr uint64_t kPercents[] = {0, 1, 20, 30, 100};
constexpr uint8_t kCanary = 0xA5;

// `elements` elements at an element-aligned but otherwise odd address, with canaries on both sides.
template <typename T>
class Guarded {
 public:
  Guarded(uint64_t elements, uint64_t slack_bytes, uint64_t offset)
      : elements_(elements),
        slack_(slack_bytes),
        offset_(64 + offset * sizeof(T)),
        bytes_(offset_ + elements * sizeof(T) + slack_bytes + 64, kCanary) {}

  T* data() { return reinterpret_cast<T*>(bytes_.data() + offset_); }
  const T& operator[](uint64_t i) { return data()[i]; }

  bool canaries_live() const {
    const uint64_t end = offset_ + elements_ * sizeof(T) + slack_;
    for (uint64_t i = 0; i < bytes_.size(); ++i) {
      if ((i < offset_ || i >= end) && bytes_[i] != kCanary) return false;
    }
    return true;
  }

 private:
  uint64_t elements_, slack_, offset_;
  std::vector<uint8_t> bytes_;
};

template <typename T>
void fill(uint64_t seed, uint64_t count, uint64_t percent, T* gradient) {
  constexpr T kMinusZero = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t random = addend_random(seed, i);
    const auto bits = static_cast<T>(random);
    const bool chosen = (random >> 32) % 100 < percent;
    const bool minus_zero = (random >> 40 & 7) == 0;
    gradient[i] = chosen ? static_cast<T>(bits | 1) : minus_zero ? kMinusZero : T{0};
  }
}

std::vector<uint64_t> bits_of(uint64_t seed, uint64_t count, uint64_t percent) {
  std::vector<uint64_t> bitmap(words_for(count));
  for (uint64_t i = 0; i < count; ++i) {
    if (addend_random(seed, i) % 100 < percent) set_bit(bitmap.data(), i);
  }
  return bitmap;
}

class KernelsOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(force_simd_target(GetParam()));
    ASSERT_EQ(simd_target(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }

  template <typename T>
  static void check_scan(T* gradient, uint64_t count, uint64_t capacity) {
    const uint64_t words = words_for(count);
    std::vector<uint64_t> bitmap(words);
    std::vector<T> kept(capacity);
    const ScanResult expected =
        reference::scan(gradient, 0, count, bitmap.data(), kept.data(), capacity, {});
    Guarded<uint64_t> actual_bitmap(words, 0, 0);
    Guarded<T> actual_kept(capacity, Buffer::kSlack, 1);
    const ScanResult actual =
        scan(sizeof(T), gradient, count, actual_bitmap.data(), actual_kept.data(), capacity);
    ASSERT_EQ(actual.nonzeros, expected.nonzeros);
    ASSERT_EQ(actual.kept, expected.kept);
    ASSERT_EQ(actual.negative_zeros, expected.negative_zeros);
    ASSERT_LE(actual.kept, capacity);
    if (words > 0) {
      ASSERT_EQ(0, std::memcmp(actual_bitmap.data(), bitmap.data(), words * 8));
    }
    if (expected.kept > 0) {
      ASSERT_EQ(0, std::memcmp(actual_kept.data(), kept.data(), expected.kept * sizeof(T)));
    }
    ASSERT_TRUE(actual_bitmap.canaries_live());
    ASSERT_TRUE(actual_kept.canaries_live());
  }

  template <typename T>
  static void check_pack(T* gradient, uint64_t count, const std::vector<uint64_t>& selection) {
    const uint64_t selected = popcount(selection);
    std::vector<T> expected(selected);
    reference::pack(gradient, 0, count, selection.data(), expected.data(), 0);
    Guarded<T> actual(selected, Buffer::kSlack, 1);
    ASSERT_EQ(pack(sizeof(T), gradient, count, selection.data(), actual.data()), selected);
    if (selected > 0) {
      ASSERT_EQ(0, std::memcmp(actual.data(), expected.data(), selected * sizeof(T)));
    }
    ASSERT_TRUE(actual.canaries_live());
    // Without slack, another thread may own what follows.
    Guarded<T> exact(selected, 0, 1);
    ASSERT_EQ(pack(sizeof(T), gradient, count, selection.data(), exact.data(), selected), selected);
    if (selected > 0) {
      ASSERT_EQ(0, std::memcmp(exact.data(), expected.data(), selected * sizeof(T)));
    }
    ASSERT_TRUE(exact.canaries_live());
  }

  template <typename T>
  static void check_place(T* gradient, uint64_t count, std::vector<uint64_t> selection) {
    std::vector<uint64_t> bitmap(words_for(count));
    Guarded<T> kept(count + 64, Buffer::kSlack, 1);
    reference::scan(gradient, 0, count, bitmap.data(), kept.data(), count + 64, {});
    for (std::size_t w = 0; w < bitmap.size(); ++w)
      selection[w] |= bitmap[w];
    const uint64_t selected = popcount(selection);
    std::vector<T> expected(selected);
    ASSERT_EQ(reference::place(kept.data(), bitmap.data(), 0, bitmap.size(), selection.data(),
                               expected.data(), {}),
              selected);
    Guarded<T> actual(selected, Buffer::kSlack, 3);
    ASSERT_EQ(place(sizeof(T), kept.data(), bitmap.data(), bitmap.size(), selection.data(),
                    actual.data()),
              selected);
    if (selected > 0) {
      ASSERT_EQ(0, std::memcmp(actual.data(), expected.data(), selected * sizeof(T)));
    }
    ASSERT_TRUE(actual.canaries_live());
    Guarded<T> exact(selected, 0, 3);
    ASSERT_EQ(place(sizeof(T), kept.data(), bitmap.data(), bitmap.size(), selection.data(),
                    exact.data(), selected),
              selected);
    if (selected > 0) {
      ASSERT_EQ(0, std::memcmp(exact.data(), expected.data(), selected * sizeof(T)));
    }
    ASSERT_TRUE(exact.canaries_live());
  }

  template <typename T>
  static void check_unpack(uint64_t count, const std::vector<uint64_t>& selection,
                           uint64_t offset) {
    const uint64_t selected = popcount(selection);
    Guarded<T> packed(selected, Buffer::kSlack, 1);
    for (uint64_t i = 0; i < selected; ++i)
      packed.data()[i] = static_cast<T>(addend_random(99, i));
    std::vector<T> expected(count);
    reference::unpack(packed.data(), selection.data(), 0, count, expected.data(), 0);
    Guarded<T> actual(count, 0, offset);
    unpack(sizeof(T), packed.data(), selection.data(), count, actual.data(),
           count * sizeof(T) >= kStreamBytes);
    if (count > 0) {
      ASSERT_EQ(0, std::memcmp(actual.data(), expected.data(), count * sizeof(T)));
    }
    ASSERT_TRUE(actual.canaries_live()) << "unpack owns its gradient to the last byte, no further";
    check_into_zeros(packed.data(), count, selection, offset, expected);
  }

  // Selected positions hold anything before, the others zero.
  template <typename T>
  static void check_into_zeros(const T* packed, uint64_t count,
                               const std::vector<uint64_t>& selection, uint64_t offset,
                               const std::vector<T>& expected) {
    Guarded<T> actual(count, 0, offset);
    std::vector<T> by_reference(count);
    for (uint64_t i = 0; i < count; ++i) {
      actual.data()[i] = by_reference[i] =
          test_bit(selection.data(), i) ? static_cast<T>(addend_random(98, i)) : T{0};
    }
    unpack_into_zeros(sizeof(T), packed, selection.data(), count, actual.data());
    reference::unpack_into_zeros(packed, selection.data(), 0, count, by_reference.data(), 0);
    ASSERT_EQ(by_reference, expected);
    if (count > 0) {
      ASSERT_EQ(0, std::memcmp(actual.data(), expected.data(), count * sizeof(T)));
    }
    ASSERT_TRUE(actual.canaries_live());
  }

  template <typename T>
  static void check_all() {
    for (const uint64_t count : kLengths) {
      for (const uint64_t percent : kPercents) {
        SCOPED_TRACE(std::to_string(sizeof(T)) + " bytes, " + std::to_string(count) + " at " +
                     std::to_string(percent) + " %");
        const uint64_t offset = count % 4;
        Guarded<T> gradient(count, 0, offset);
        fill(count + percent, count, percent, gradient.data());
        const auto bitmap = bits_of(count + 7, count, percent);
        const uint64_t exact = count * percent / 100;
        for (const uint64_t capacity :
             {uint64_t{0}, uint64_t{63}, uint64_t{64}, uint64_t{200}, exact, count + 64}) {
          check_scan(gradient.data(), count, capacity);
        }
        check_pack(gradient.data(), count, bitmap);
        check_place(gradient.data(), count, bitmap);
        check_place(gradient.data(), count, std::vector<uint64_t>(words_for(count)));
        check_unpack<T>(count, bitmap, offset);
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_P(KernelsOnTarget, EqualTheReferenceByteForByteOnFourByteElements) { check_all<uint32_t>(); }

TEST_P(KernelsOnTarget, EqualTheReferenceByteForByteOnTwoByteElements) { check_all<uint16_t>(); }

TEST_P(KernelsOnTarget, StreamLargeGradientsLikeSmallOnes) {
  constexpr uint64_t kBytes = (uint64_t{4} << 20) + 262;
  for (const uint64_t percent : {1, 30}) {
    const auto words32 = bits_of(percent, kBytes / 4, percent);
    const auto words16 = bits_of(percent, kBytes / 2, percent);
    for (const uint64_t offset : {0, 1, 16}) {
      check_unpack<uint32_t>(kBytes / 4, words32, offset);
      check_unpack<uint16_t>(kBytes / 2, words16, offset);
      ASSERT_FALSE(HasFatalFailure()) << percent << " % at offset " << offset;
    }
    Guarded<uint32_t> gradient(kBytes / 4, 0, 1);
    fill(percent, kBytes / 4, percent, gradient.data());
    check_scan(gradient.data(), kBytes / 4, kBytes / 16);
    check_pack(gradient.data(), kBytes / 4, words32);
    check_place(gradient.data(), kBytes / 4, words32);
  }
}

TEST_P(KernelsOnTarget, TreatMinusZeroAsZeroAndNanAsAValue) {
  std::vector<uint32_t> gradient(130, 0);
  gradient[5] = 0x80000000u;
  gradient[70] = 0x7FC00000u;
  gradient[71] = 1u;
  gradient[129] = 0x80000001u;
  std::vector<uint64_t> bitmap(3);
  std::vector<uint32_t> kept(130 + 64 + Buffer::kSlack / 4);
  const ScanResult found = scan(4, gradient.data(), 130, bitmap.data(), kept.data(), 130 + 64);
  EXPECT_EQ(found.nonzeros, 3u);
  EXPECT_EQ(bitmap, (std::vector<uint64_t>{0, 3u << 6, 2}));
  EXPECT_EQ(kept[0], 0x7FC00000u);
  EXPECT_EQ(kept[1], 1u);
  EXPECT_EQ(kept[2], 0x80000001u);
}

TEST_P(KernelsOnTarget, FindTheOneNegativeZeroWhereverItStands) {
  for (const uint64_t at : {0, 63, 64, 130, 199}) {
    for (const uint64_t capacity : {0, 300}) {  // also where non-zeros are no longer kept
      std::vector<uint32_t> gradient(200, 0), kept(capacity + Buffer::kSlack / 4);
      std::vector<uint64_t> bitmap(words_for(200));
      gradient[100] = 0x80000001u;
      EXPECT_FALSE(
          scan(4, gradient.data(), 200, bitmap.data(), kept.data(), capacity).negative_zeros);
      gradient[at] = 0x80000000u;
      EXPECT_TRUE(
          scan(4, gradient.data(), 200, bitmap.data(), kept.data(), capacity).negative_zeros)
          << at;
    }
  }
}

TEST_P(KernelsOnTarget, LeaveWordsWithoutSelectedPositionsAlone) {
  const std::vector<uint64_t> selection = {0, 1, 0, 0};
  const std::vector<uint32_t> packed(1 + Buffer::kSlack / 4, 7);
  std::vector<uint32_t> gradient(200, 5);
  unpack_into_zeros(4, packed.data(), selection.data(), 200, gradient.data());
  EXPECT_EQ(gradient[63], 5u);
  EXPECT_EQ(gradient[64], 7u);
  EXPECT_EQ(gradient[128], 5u);
  EXPECT_EQ(gradient[199], 5u);
}

INSTANTIATE_TEST_SUITE_P(All, KernelsOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace addend::index
