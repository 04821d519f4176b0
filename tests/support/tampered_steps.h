// SPDX-License-Identifier: Apache-2.0
// The codecs of all workers in one thread, stepped together, under a reducer that may lie: rounds
// are folded in worker order, and a test may tamper with a sum before the workers see it.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "addend/codec.h"
#include "wire/half.h"

namespace addend::testing_support {

template <typename T, typename Combine>
void combine_lanes(const Plane& to, const Plane& from, Combine&& combine) {
  for (uint64_t i = 0; i < to.lanes; ++i) {
    T& acc = static_cast<T*>(to.data)[i];
    acc = static_cast<T>(combine(acc, static_cast<const T*>(from.data)[i]));
  }
}

/// Folds the plane operations that codecs use; plain code of its own, because codecs do not link
/// `fold`.
inline Status combine_planes(const Plane& to, const Plane& from) {
  if (to.op != from.op || to.lanes != from.lanes) {
    return make_error(Errc::kMismatch, "workers sent different planes");
  }
  switch (to.op) {
    case Op::kSumF32:
      combine_lanes<float>(to, from, [](float a, float b) { return a + b; });
      return {};
    case Op::kSumBf16:
      combine_lanes<uint16_t>(to, from, [](uint16_t a, uint16_t b) {
        return addend_bf16_from_f32(addend_f32_from_bf16(a) + addend_f32_from_bf16(b));
      });
      return {};
    case Op::kSumF16:
      combine_lanes<uint16_t>(to, from, [](uint16_t a, uint16_t b) {
        return addend_f16_from_f32(addend_f32_from_f16(a) + addend_f32_from_f16(b));
      });
      return {};
    case Op::kSumI32:
      combine_lanes<uint32_t>(to, from, [](uint32_t a, uint32_t b) { return a + b; });
      return {};
    case Op::kSumI64:
      combine_lanes<uint64_t>(to, from, [](uint64_t a, uint64_t b) { return a + b; });
      return {};
    case Op::kSumU8:
      combine_lanes<uint8_t>(to, from, [](uint32_t a, uint32_t b) { return a + b; });
      return {};
    case Op::kOrU64:
      combine_lanes<uint64_t>(to, from, [](uint64_t a, uint64_t b) { return a | b; });
      return {};
    case Op::kMaxU32:
      combine_lanes<uint32_t>(to, from, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
      return {};
    default:
      return make_error(Errc::kUnsupported, "no codec uses this operation yet");
  }
}

/// One worker's gradient as bytes.
using Gradient = std::vector<uint8_t>;

class TamperedSteps {
 public:
  /// Called with the number of the round and its folded planes.
  using Tamper = std::function<void(uint32_t, Round&)>;

  static Result<TamperedSteps> create(std::string_view spec_text, const Layout& layout) {
    const Result<CodecSpec> spec = CodecSpec::parse(spec_text);
    ADDEND_TRY(spec);
    TamperedSteps made;
    Layout mine = layout;
    for (mine.worker = 0; mine.worker < layout.world; ++mine.worker) {
      Result<std::unique_ptr<Codec>> codec = create_codec(*spec, mine);
      ADDEND_TRY(codec);
      made.codecs_.push_back(std::move(*codec));
    }
    return made;
  }

  /// One step: every gradient becomes the sum. The first error ends the step on all workers.
  Status step(std::vector<Gradient>& gradients, const Tamper& tamper = nullptr) {
    const Status status = try_step(gradients, tamper);
    for (const auto& codec : codecs_)
      codec->cancel();
    return status;
  }

  Codec& worker(std::size_t w) { return *codecs_[w]; }
  const Report& report() const { return codecs_[0]->report(); }

 private:
  Status try_step(std::vector<Gradient>& gradients, const Tamper& tamper) {
    for (std::size_t w = 0; w < codecs_.size(); ++w)
      ADDEND_TRY(codecs_[w]->begin(gradients[w].data()));
    for (uint32_t number = 0;; ++number) {
      const Result<bool> more = exchange(number, tamper);
      ADDEND_TRY(more);
      if (!*more) break;
    }
    for (std::size_t w = 0; w < codecs_.size(); ++w)
      ADDEND_TRY(codecs_[w]->finish(gradients[w].data()));
    return {};
  }

  Result<bool> exchange(uint32_t number, const Tamper& tamper) {
    std::vector<Round> rounds(codecs_.size());
    bool more = false;
    for (std::size_t w = 0; w < codecs_.size(); ++w) {
      const Result<bool> next = codecs_[w]->next_round(rounds[w]);
      ADDEND_TRY(next);
      if (w > 0 && (*next != more || rounds[w].size != rounds[0].size)) {
        return make_error(Errc::kMismatch,
                          "workers disagree about round " + std::to_string(number));
      }
      more = *next;
    }
    if (!more) return false;
    for (std::size_t w = 1; w < codecs_.size(); ++w) {
      for (std::size_t p = 0; p < rounds[0].size; ++p)
        ADDEND_TRY(combine_planes(rounds[0].planes[p], rounds[w].planes[p]));
    }
    if (tamper) tamper(number, rounds[0]);
    for (std::size_t w = 1; w < codecs_.size(); ++w) {
      for (std::size_t p = 0; p < rounds[0].size; ++p) {
        const Plane& sum = rounds[0].planes[p];
        std::memcpy(rounds[w].planes[p].data, sum.data, op_bytes(sum.op, sum.lanes));
      }
    }
    return true;
  }

  std::vector<std::unique_ptr<Codec>> codecs_;
};

}  // namespace addend::testing_support
