// SPDX-License-Identifier: Apache-2.0
#include "auth/frame_key.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "addend/simd.h"
#include "auth/payload_hash.h"
#include "auth/siphash.h"
#include "gtest/gtest.h"
#include "tests/support/keys.h"
#include "wire/hash.h"
#include "wire/tag.h"

namespace addend::auth {
namespace {

using testing_support::secret_of;

std::vector<uint8_t> random_bytes(uint64_t seed, std::size_t count) {
  std::vector<uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<uint8_t>(addend_random(seed, i));
  return bytes;
}

// As in the vectors of SipHash's reference implementation: key 00..0f, input 00 01 ... of 0, 8, 16
// and 24 bytes.
TEST(SipHash, EqualsTheAuthorsVectors) {
  uint8_t bytes[32];
  std::iota(bytes, bytes + 32, uint8_t{0});
  uint64_t key[2], words[4];
  std::memcpy(key, bytes, 16);
  std::memcpy(words, bytes, 32);
  EXPECT_EQ(addend_siphash(key, words, 0), 0x726fdb47dd0e0e31ull);
  EXPECT_EQ(addend_siphash(key, words, 1), 0x93f5f5799a932462ull);
  EXPECT_EQ(addend_siphash(key, words, 2), 0x3f2acc7f57c29bdbull);
  EXPECT_EQ(addend_siphash(key, words, 3), 0xb8ad50c6f649af94ull);
}

TEST(PayloadHash, IsTheDefinitionOnEveryTargetAndLength) {
  std::vector<uint32_t> key(ADDEND_TAG_HASH_WORDS(2000));
  for (std::size_t i = 0; i < key.size(); ++i)
    key[i] = static_cast<uint32_t>(addend_random(3, i));
  for (std::size_t bytes : {0, 1, 4, 7, 8, 9, 15, 16, 63, 64, 65, 128, 200, 1408, 1999}) {
    const std::vector<uint8_t> payload = random_bytes(bytes, bytes);
    PayloadHash expected{};
    std::vector<uint8_t> padded = payload;
    padded.resize((bytes + 7) / 8 * 8);
    for (std::size_t i = 0; i < padded.size() / 4; i += 2) {
      uint32_t pair[2];
      std::memcpy(pair, padded.data() + i * 4, 8);
      for (std::size_t pass = 0; pass < 2; ++pass) {
        const uint32_t a = pair[0] + key[i + pass * 4], b = pair[1] + key[i + pass * 4 + 1];
        expected[pass] += uint64_t{a} * b;
      }
    }
    EXPECT_EQ(reference::hash_payload(key.data(), payload), expected) << bytes;
    for (const std::string& target : simd_targets()) {
      ASSERT_TRUE(force_simd_target(target));
      EXPECT_EQ(hash_payload(key.data(), payload), expected) << bytes << " on " << target;
    }
    ASSERT_TRUE(force_simd_target(""));
  }
}

TEST(PayloadHash, OfTwoIsThatOfEach) {
  std::vector<uint32_t> key(ADDEND_TAG_HASH_WORDS(2000));
  for (std::size_t i = 0; i < key.size(); ++i)
    key[i] = static_cast<uint32_t>(addend_random(4, i));
  for (std::size_t bytes : {0, 1, 8, 9, 64, 100, 1408, 1999}) {
    const std::vector<uint8_t> a = random_bytes(bytes, bytes), b = random_bytes(bytes + 1, bytes);
    for (const std::string& target : simd_targets()) {
      ASSERT_TRUE(force_simd_target(target));
      const auto hashes = hash_two_payloads(key.data(), a, b);
      EXPECT_EQ(hashes[0], reference::hash_payload(key.data(), a)) << bytes << " on " << target;
      EXPECT_EQ(hashes[1], reference::hash_payload(key.data(), b)) << bytes << " on " << target;
    }
    ASSERT_TRUE(force_simd_target(""));
  }
}

TEST(SipHash, OfManyIsThatOfEachOnEveryTarget) {
  TagColumns columns;
  for (std::size_t i = 0; i < kTagsAtOnce; ++i) {
    for (std::size_t w = 0; w < 2; ++w)
      columns.key[w][i] = addend_random(5, i * 10 + w);
    for (std::size_t w = 0; w < ADDEND_TAG_HEADER_WORDS + 2; ++w)
      columns.words[w][i] = addend_random(6, i * 10 + w);
  }
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    for (std::size_t count = 0; count <= kTagsAtOnce; ++count) {
      std::array<uint64_t, kTagsAtOnce + 1> expected{}, tags{};
      reference::finish_tags(columns, count, expected.data());
      finish_tags(columns, count, tags.data());
      EXPECT_EQ(tags, expected) << count << " on " << target;
    }
  }
  ASSERT_TRUE(force_simd_target(""));
}

// Runs of frames under one key and of one length, and others between them.
TEST(FrameKey, TagsOfManyAreTheTagsOfEach) {
  std::vector<FrameKey> keys;
  for (uint8_t k = 0; k < 3; ++k)
    keys.push_back(*FrameKey::create(secret_of(k), 200));
  std::vector<std::vector<uint8_t>> frames;
  std::vector<KeyedFrame> keyed;
  std::vector<uint64_t> expected;
  for (std::size_t i = 0; i < 45; ++i) {
    frames.push_back(random_bytes(i, ADDEND_FRAME_HEADER_BYTES + (i % 9 == 8 ? i : 200)));
    const FrameKey& key = keys[i % 7 == 6 ? i % 3 : 0];
    keyed.push_back({&key, frames.back()});
    addend_frame_header header;
    std::memcpy(&header, frames.back().data(), sizeof(header));
    expected.push_back(
        key.tag(header, std::span<const uint8_t>(frames.back()).subspan(sizeof(header))));
  }
  for (std::size_t count = 0; count <= frames.size(); ++count) {
    std::vector<uint64_t> tags(count);
    FrameKey::tag_all({keyed.data(), count}, tags.data());
    EXPECT_TRUE(std::equal(tags.begin(), tags.end(), expected.begin())) << count;
  }
}

TEST(FrameKey, EveryBitOfHeaderAndPayloadCounts) {
  const auto key = FrameKey::create(secret_of(1), 64);
  ASSERT_TRUE(key);
  std::vector<uint8_t> payload = random_bytes(1, 40);
  addend_frame_header header{};
  header.turn = 5;
  header.tag = addend_be64(key->tag(header, payload));
  ASSERT_TRUE(key->verify(header, payload));
  for (std::size_t bit = 0; bit < sizeof(header) * 8; ++bit) {
    addend_frame_header bent = header;
    reinterpret_cast<uint8_t*>(&bent)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_FALSE(key->verify(bent, payload)) << "header bit " << bit;
  }
  for (std::size_t bit = 0; bit < payload.size() * 8; ++bit) {
    payload[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_FALSE(key->verify(header, payload)) << "payload bit " << bit;
    payload[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
  // Two changes that cancel in a plain sum of words do not cancel here.
  std::swap_ranges(payload.begin(), payload.begin() + 8, payload.begin() + 8);
  EXPECT_FALSE(key->verify(header, payload));
}

TEST(FrameKey, DiffersByWorkerPurposeAndSecret) {
  const addend_frame_header header{};
  const auto tag_under = [&](const Secret& secret) {
    return FrameKey::create(secret, 8)->tag(header, {});
  };
  const Secret job = secret_of(9);
  const std::vector<uint64_t> tags = {tag_under(job), tag_under(*derive_secret(job, "worker", 0)),
                                      tag_under(*derive_secret(job, "worker", 1)),
                                      tag_under(*derive_secret(job, "result", 0)),
                                      tag_under(*derive_secret(secret_of(8), "worker", 0))};
  for (std::size_t i = 0; i < tags.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_NE(tags[i], tags[j]) << i << " and " << j;
  }
  EXPECT_EQ(tag_under(*derive_secret(job, "worker", 1)), tags[2]);
}

// Derivation and tag are part of the protocol: another implementation must find these numbers.
TEST(FrameKey, KnownAnswers) {
  const Secret worker = *derive_secret(secret_of(7), "worker", 2);
  const auto key = FrameKey::create(worker, ADDEND_FRAME_PAYLOAD_BYTES);
  std::vector<uint8_t> payload(ADDEND_FRAME_PAYLOAD_BYTES);
  std::iota(payload.begin(), payload.end(), uint8_t{0});
  addend_frame_header header{};
  header.magic = ADDEND_FRAME_MAGIC;
  header.version = ADDEND_FRAME_VERSION;
  header.kind = ADDEND_FRAME_CONTRIBUTION;
  header.epoch = 0x01020304;
  header.length = ADDEND_FRAME_PAYLOAD_BYTES;
  header.contributors = 4;
  addend_frame_swap(&header);
  EXPECT_EQ(worker.bytes()[0], 0x2F);
  EXPECT_EQ(key->tag(header, payload), 0xB59A593CFADB9C57ull);
}

}  // namespace
}  // namespace addend::auth
