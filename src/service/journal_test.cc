// SPDX-License-Identifier: Apache-2.0
#include "service/journal.h"

#include "gtest/gtest.h"

namespace addend::service {
namespace {

std::vector<KeptJob> some_jobs() {
  KeptJob plain{"lab", {}, false}, full{"other", {}, true};
  plain.options.name = "ring";
  plain.options.world = 4;
  full.options.name = "open";
  full.options.world = 8;
  full.options.slots = 100;
  full.options.payload_bytes = 8832;
  full.options.floats = false;
  full.options.patience = std::chrono::milliseconds(1500);
  full.options.quorum = 6;
  full.options.key.bytes.fill(9);
  return {plain, full};
}

TEST(Journal, KeepsEveryOptionOfAJob) {
  const auto jobs = decode_jobs(encode_jobs(some_jobs()));
  ASSERT_TRUE(jobs) << jobs.error().message;
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ((*jobs)[0].tenant, "lab");
  EXPECT_FALSE((*jobs)[0].draining);
  EXPECT_FALSE((*jobs)[0].options.key.is_set());
  const JobOptions& open = (*jobs)[1].options;
  EXPECT_TRUE((*jobs)[1].draining);
  EXPECT_EQ(open.name, "open");
  EXPECT_EQ(open.world, 8u);
  EXPECT_EQ(open.slots, 100u);
  EXPECT_EQ(open.payload_bytes, 8832u);
  EXPECT_FALSE(open.floats);
  EXPECT_EQ(open.patience, std::chrono::milliseconds(1500));
  EXPECT_EQ(open.quorum, 6u);
  EXPECT_EQ(open.key.bytes, some_jobs()[1].options.key.bytes);
  EXPECT_TRUE(decode_jobs(encode_jobs({}))->empty());
}

TEST(Journal, CutOffAtAnyByteIsRefused) {
  const std::vector<uint8_t> bytes = encode_jobs(some_jobs());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto jobs = decode_jobs(std::span(bytes).first(length));
    ASSERT_FALSE(jobs) << length;
    EXPECT_EQ(jobs.error().code, Errc::kMalformed);
  }
}

TEST(Journal, AnyFlippedBitIsRefused) {
  std::vector<uint8_t> bytes = encode_jobs(some_jobs());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_FALSE(decode_jobs(bytes)) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
  bytes.push_back(0);
  EXPECT_FALSE(decode_jobs(bytes));
}

TEST(Journal, AnotherVersionIsNamed) {
  std::vector<uint8_t> bytes = encode_jobs(some_jobs());
  bytes[8] = 2;
  EXPECT_NE(decode_jobs(bytes).error().message.find("version 2"), std::string::npos);
}

}  // namespace
}  // namespace addend::service
