// SPDX-License-Identifier: Apache-2.0
// Keys of the data plane: one for each worker's contributions, one for a job's results.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "addend/result.h"
#include "wire/frame.h"

namespace addend::auth {

/// 256 secret bits. Wiped when it goes out of scope.
class Secret {
 public:
  static constexpr std::size_t kBytes = 32;
  Secret() = default;
  explicit Secret(std::span<const uint8_t, kBytes> bytes);
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;

  std::span<const uint8_t, kBytes> bytes() const { return bytes_; }

 private:
  std::array<uint8_t, kBytes> bytes_{};
};

/// From the system's generator.
Result<Secret> random_secret();
Result<uint32_t> random_number();

/// A secret for one purpose, from which neither `secret` nor its siblings can be found.
/// HKDF-SHA256; `purpose` names what it is for, e.g. "worker 3".
Result<Secret> derive_secret(const Secret& secret, const char* purpose, uint32_t number);

struct KeyedFrame;

/// What tags frames with payloads up to a size. Immutable, so any thread may use it.
class FrameKey {
 public:
  static Result<FrameKey> create(const Secret& secret, uint32_t payload_bytes);
  /// For empty payloads, and of no secret: a place for a key.
  FrameKey() = default;
  ~FrameKey();
  FrameKey(FrameKey&&) = default;
  FrameKey& operator=(FrameKey&&) = default;
  FrameKey(const FrameKey&) = delete;
  FrameKey& operator=(const FrameKey&) = delete;

  /// The tag of a frame: `header` as it travels (the tag itself is not looked at), and the payload.
  /// REQUIRES: payload no longer than the key is for. The result is in the machine's byte order.
  uint64_t tag(const addend_frame_header& header, std::span<const uint8_t> payload) const noexcept;

  /// Whether the frame carries the right tag; takes the same time for every wrong one.
  bool verify(const addend_frame_header& header, std::span<const uint8_t> payload) const noexcept {
    return (addend_be64(header.tag) ^ tag(header, payload)) == 0;
  }

  /// What frames carry where a switch folds, which can compare a tag but not compute one: that of
  /// no frame at all, so it tells nothing of other tags. In the machine's byte order.
  uint64_t fixed_tag() const noexcept { return tag({}, {}); }

  /// For a data plane with a memory of its own: the key of the pseudo-random function, and the
  /// words of the hash's (src/wire/tag.h).
  const std::array<uint64_t, 2>& prf() const { return prf_; }
  std::span<const uint32_t> hash_words() const { return hash_; }

  /// The tags of many frames, in less time than one by one: tags[i] is that of frames[i].
  /// REQUIRES: every frame has a header, and a payload no longer than its key is for.
  static void tag_all(std::span<const KeyedFrame> frames, uint64_t* tags) noexcept;

 private:
  static void tag_some(std::span<const KeyedFrame> frames, uint64_t* tags) noexcept;

  std::array<uint64_t, 2> prf_{};
  std::vector<uint32_t> hash_;
};

/// A frame as it travels, header and payload, and the key that tags it.
struct KeyedFrame {
  const FrameKey* key;
  std::span<const uint8_t> bytes;
};

}  // namespace addend::auth
