// SPDX-License-Identifier: Apache-2.0
// Error feedback: what a lossy codec has taken from this worker so far, in coordinates of the
// codec's choice. Kept as floats, or as bytes with one scale a block.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "addend/result.h"
#include "base/buffer.h"

namespace addend {

enum class Feedback : uint8_t { kNone, kFloat, kByte };

class Residual {
 public:
  /// Blocks that follow each other, and their elements.
  struct Range {
    uint64_t begin = 0, elements = 0;
    uint64_t first_block = 0, blocks = 0;
  };

  /// What there is to keep, for a residual whose bytes are elsewhere (on a device).
  void describe(Feedback feedback, uint64_t elements, uint64_t blocks);
  /// Zero for `elements` elements in `blocks` blocks. kNone holds nothing.
  Status reserve(Feedback feedback, uint64_t elements, uint64_t blocks);
  /// Room for a norm of each block, the bits of a float, which is saved with the residual; kNoNorm
  /// until it is set. REQUIRES: reserve, not kNone.
  Status reserve_norms();

  /// Room for what a step would leave behind, beside what the last one did: a step that is
  /// cancelled has then changed nothing. REQUIRES: reserve, kFloat.
  Status reserve_draft();
  bool has_draft() const { return drafts_; }
  float* draft() { return draft_.as<float>(); }
  const float* draft() const { return draft_.as<float>(); }
  /// draft = x, as store does; and draft = residual.
  void store_draft(uint64_t begin, uint64_t n, const float* x);
  void keep_as_draft(uint64_t begin, uint64_t n);
  /// The draft, all of it stored, becomes the residual.
  void take_draft() { std::swap(values_, draft_); }

  static constexpr uint32_t kNoNorm = 0xFFFFFFFF;
  std::span<uint32_t> norms() { return {norms_.as<uint32_t>(), keeps_norms_ ? blocks_ : 0}; }
  std::span<const uint32_t> norms() const {
    return {norms_.as<uint32_t>(), keeps_norms_ ? blocks_ : 0};
  }

  bool any() const { return feedback_ != Feedback::kNone; }

  /// x[i] += residual times `factor`, for a block whose elements start at `begin`.
  void add_to(uint64_t block, uint64_t begin, uint64_t n, float* x, float factor = 1) const;
  /// residual = x, but for elements that are not finite, which become 0.
  void store(uint64_t block, uint64_t begin, uint64_t n, const float* x);

  /// kFloat: the elements themselves.
  float* values() { return values_.as<float>(); }

  /// kFloat: takes the elements that `values` holds, and leaves its own there. REQUIRES: as many.
  void exchange(Buffer& values) { std::swap(values_, values); }

  /// All of it times `factor`, but for what is then not finite, which becomes 0; norms likewise,
  /// which then are none.
  void multiply(double factor);

  uint64_t memory_bytes() const {
    return values_.capacity() + draft_.capacity() + scales_.capacity() + norms_.capacity();
  }

  /// The bytes of a part of the state, and back; the size is a function of the range and of
  /// reserve's arguments.
  Range all() const { return {0, elements_, 0, blocks_}; }
  uint64_t state_bytes(const Range& range) const;
  uint64_t element_bytes() const;
  void save(const Range& range, uint8_t* to) const;
  void load(const Range& range, const uint8_t* from);

 private:
  Feedback feedback_ = Feedback::kNone;
  uint64_t elements_ = 0;
  uint64_t blocks_ = 0;
  Buffer values_;  // float or int8_t per element
  bool drafts_ = false;
  Buffer draft_;
  Buffer scales_;  // float per block, for bytes
  bool keeps_norms_ = false;
  Buffer norms_;
};

}  // namespace addend
