// SPDX-License-Identifier: Apache-2.0
#include "auth/frame_key.h"

#include <cstring>
#include <memory>
#include <string>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "auth/payload_hash.h"
#include "auth/siphash.h"
#include "base/assert.h"
#include "wire/tag.h"

namespace addend::auth {
namespace {

Error crypto_error(const char* what) {
  return make_error(Errc::kUnavailable, std::string("the cryptographic library refused: ") + what);
}

// A stream of key bytes: ChaCha20 under the secret, nonce and counter zero. A secret is used for
// one stream only.
Status expand(const Secret& secret, std::span<uint8_t> out) {
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(
      EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  const std::array<uint8_t, 16> nonce{};
  std::memset(out.data(), 0, out.size());
  int written = 0;
  if (!context ||
      EVP_EncryptInit_ex2(context.get(), EVP_chacha20(), secret.bytes().data(), nonce.data(),
                          nullptr) != 1 ||
      EVP_EncryptUpdate(context.get(), out.data(), &written, out.data(),
                        static_cast<int>(out.size())) != 1) {
    return crypto_error("ChaCha20");
  }
  return {};
}

}  // namespace

Secret::Secret(std::span<const uint8_t, kBytes> bytes) {
  std::memcpy(bytes_.data(), bytes.data(), kBytes);
}
Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Result<Secret> random_secret() {
  std::array<uint8_t, Secret::kBytes> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) return crypto_error("RAND");
  Secret secret{std::span<const uint8_t, Secret::kBytes>(bytes)};
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

Result<uint32_t> random_number() {
  uint32_t number = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof(number)) != 1) {
    return crypto_error("RAND");
  }
  return number;
}

Result<Secret> derive_secret(const Secret& secret, const char* purpose, uint32_t number) {
  std::string info = "addend v1 " + std::string(purpose) + " " + std::to_string(number);
  std::array<uint8_t, Secret::kBytes> bytes;
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  if (!kdf) return crypto_error("HKDF");
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(
          OSSL_KDF_PARAM_KEY, const_cast<uint8_t*>(secret.bytes().data()), Secret::kBytes),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  if (!context || EVP_KDF_derive(context.get(), bytes.data(), bytes.size(), params) != 1) {
    return crypto_error("HKDF");
  }
  Secret derived{std::span<const uint8_t, Secret::kBytes>(bytes)};
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return derived;
}

Result<FrameKey> FrameKey::create(const Secret& secret, uint32_t payload_bytes) {
  if (payload_bytes == 0 || payload_bytes > ADDEND_FRAME_MAX_PAYLOAD_BYTES) {
    return make_error(Errc::kInvalidArgument, "a frame key is for payloads of 1 to 8832 bytes");
  }
  FrameKey key;
  const std::size_t words = ADDEND_TAG_HASH_WORDS(payload_bytes);
  std::vector<uint32_t> stream(4 + words);
  ADDEND_TRY(expand(secret, {reinterpret_cast<uint8_t*>(stream.data()), stream.size() * 4}));
  std::memcpy(key.prf_.data(), stream.data(), 16);
  key.hash_.assign(stream.begin() + 4, stream.end());
  OPENSSL_cleanse(stream.data(), stream.size() * 4);
  return key;
}

FrameKey::~FrameKey() {
  OPENSSL_cleanse(prf_.data(), sizeof(prf_));
  if (!hash_.empty()) OPENSSL_cleanse(hash_.data(), hash_.size() * 4);
}

uint64_t FrameKey::tag(const addend_frame_header& header,
                       std::span<const uint8_t> payload) const noexcept {
  ADDEND_ASSERT(ADDEND_TAG_HASH_WORDS(payload.size()) <= hash_.size());
  const PayloadHash hash = hash_payload(hash_.data(), payload);
  uint64_t words[ADDEND_TAG_HEADER_WORDS];
  std::memcpy(words, &header, sizeof(words));
  return addend_tag_finish(prf_.data(), words, hash[0], hash[1]);
}

void FrameKey::tag_all(std::span<const KeyedFrame> frames, uint64_t* tags) noexcept {
  for (; frames.size() > kTagsAtOnce; frames = frames.subspan(kTagsAtOnce), tags += kTagsAtOnce)
    tag_some(frames.first(kTagsAtOnce), tags);
  tag_some(frames, tags);
}

// REQUIRES: at most kTagsAtOnce.
void FrameKey::tag_some(std::span<const KeyedFrame> frames, uint64_t* tags) noexcept {
  TagColumns columns;
  // Headers before payloads: vectors are loaded faster from stores that are not quite recent.
  for (std::size_t i = 0; i < frames.size(); ++i) {
    columns.key[0][i] = frames[i].key->prf_[0];
    columns.key[1][i] = frames[i].key->prf_[1];
    for (std::size_t w = 0; w < ADDEND_TAG_HEADER_WORDS; ++w)
      std::memcpy(&columns.words[w][i], frames[i].bytes.data() + w * 8, 8);
  }
  const auto put_hash = [&](std::size_t i, const PayloadHash& hash) {
    columns.words[ADDEND_TAG_HEADER_WORDS][i] = hash[0];
    columns.words[ADDEND_TAG_HEADER_WORDS + 1][i] = hash[1];
  };
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const FrameKey* key = frames[i].key;
    const auto payload = frames[i].bytes.subspan(ADDEND_FRAME_HEADER_BYTES);
    ADDEND_ASSERT(ADDEND_TAG_HASH_WORDS(payload.size()) <= key->hash_.size());
    if (i + 1 < frames.size() && frames[i + 1].key == key &&
        frames[i + 1].bytes.size() == frames[i].bytes.size()) {
      const auto next = frames[i + 1].bytes.subspan(ADDEND_FRAME_HEADER_BYTES);
      const auto hashes = hash_two_payloads(key->hash_.data(), payload, next);
      put_hash(i, hashes[0]);
      put_hash(++i, hashes[1]);
    } else {
      put_hash(i, hash_payload(key->hash_.data(), payload));
    }
  }
  finish_tags(columns, frames.size(), tags);
}

}  // namespace addend::auth
