// SPDX-License-Identifier: Apache-2.0
// The codecs of all workers in one thread, stepped together, under a reducer that may lie: rounds are
//PLACE
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "addend/codec.h"
#include "addend/fold.h"

namespace addend::testing_support {

/// One worker's gradient; 8-byte aligned storage of layout.count elements.
using Gradient = std::vector<uint8_t>;

class TamperedSteps {
 public:
  /// Called with the number of the round and its folded planes.
  using Tamper = std::function<void(uint32_t, Round&)>;

  static Result<TamperedSteps> create(std::string_view spec_text, const Layout& layout) {
    const Result<CodecSpec> spec = CodecSpec::parse(spec_text);
    ADDEND_TRY(spec);
    TamperedSteps steps;
    for (uint32_t w = 0; w < layout.world; ++w) {
      Result<std::unique_ptr<Codec>> codec = create_codec(*spec, layout);
      ADDEND_TRY(codec);
      steps.codecs_.push_back(std::move(*codec));
    }
    return steps;
  }

  /// One step: every gradient becomes the sum. The first error ends the step on all workers.
  Status step(std::vector<Gradient>& gradients, const Tamper& tamper = nullptr) {
    const Status status = try_step(gradients, tamper);
    if (status) return status;
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
        return make_error(Errc::kMismatch, "workers disagree about round " +
                                               std::to_string(number));
      }
      more = *next;
    }
    if (!more) return false;
    for (std::size_t w = 1; w < codecs_.size(); ++w) {
      for (std::size_t p = 0; p < rounds[0].size; ++p)
        ADDEND_TRY(fold(rounds[0].planes[p], rounds[w].planes[p]));
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
