// SPDX-License-Identifier: Apache-2.0
// The codecs of all workers in one thread, stepped together; rounds are folded in worker order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "addend/fold.h"

namespace addend::testing_support {

using Bytes = std::vector<uint8_t>;

class Lockstep {
 public:
  /// REQUIRES: a spec and a layout that create_codec accepts.
  Lockstep(const std::string& spec, const Layout& layout) {
    const auto parsed = CodecSpec::parse(spec);
    if (!parsed) std::abort();
    Layout mine = layout;
    for (uint32_t w = 0; w < layout.world; ++w) {
      mine.worker = w;
      auto codec = create_codec(*parsed, mine);
      if (!codec) std::abort();
      codecs_.push_back(std::move(*codec));
    }
  }

  /// One step. The first `decoders` workers decode the sum into their gradient; the others cancel.
  Status step(std::vector<Bytes>& gradients, uint32_t decoders = ~uint32_t{0}) {
    const Status status = try_step(gradients, std::min<std::size_t>(decoders, codecs_.size()));
    for (const auto& codec : codecs_)
      codec->cancel();
    return status;
  }

  Codec& codec(uint32_t w) { return *codecs_[w]; }

  /// The sums are without this worker.
  void leave_out(uint32_t w, bool missing = true) {
    const uint64_t bit = uint64_t{1} << w;
    missing_ = missing ? missing_ | bit : missing_ & ~bit;
  }

 private:
  Status try_step(std::vector<Bytes>& gradients, std::size_t decoders) {
    for (std::size_t w = 0; w < codecs_.size(); ++w) {
      if (codecs_[w]->fingerprint() != codecs_[0]->fingerprint()) {
        return make_error(Errc::kMismatch, "worker " + std::to_string(w) + " has another plan");
      }
      ADDEND_TRY(codecs_[w]->begin(gradients[w].data()));
      ADDEND_TRY(codecs_[w]->set_missing(missing_));
    }
    while (true) {
      const Result<bool> more = exchange();
      ADDEND_TRY(more);
      if (!*more) break;
    }
    for (std::size_t w = 0; w < decoders; ++w) {
      ADDEND_TRY(codecs_[w]->finish(gradients[w].data()));
    }
    return {};
  }

  Result<bool> exchange() {
    std::vector<Round> rounds(codecs_.size());
    for (std::size_t w = 0; w < codecs_.size(); ++w) {
      const Result<bool> more = codecs_[w]->next_round(rounds[w]);
      ADDEND_TRY(more);
      if (!*more) rounds[w].clear();
      if (rounds[w].size != rounds[0].size) {
        return make_error(Errc::kMismatch, "worker " + std::to_string(w) + " has other planes");
      }
    }
    if (rounds[0].size == 0) return false;
    for (std::size_t p = 0; p < rounds[0].size; ++p)
      ADDEND_TRY(reduce(rounds, p));
    return true;
  }

  // Zero is neutral for every operation.
  Status reduce(std::vector<Round>& rounds, std::size_t p) {
    const Plane& shape = rounds[0].planes[p];
    Bytes sum(op_sum_bytes(shape.op, shape.lanes) + 8, 0);
    std::vector<const uint8_t*> indices;
    for (std::size_t w = 0; w < codecs_.size(); ++w) {
      const Plane& plane = rounds[w].planes[p];
      if (plane.op != shape.op || plane.lanes != shape.lanes)
        return make_error(Errc::kMismatch, "planes differ");
      if (w < 64 && (missing_ >> w & 1) != 0) continue;
      if (is_table_sum(plane.op)) {
        indices.push_back(static_cast<const uint8_t*>(plane.data));
      } else {
        fold(plane.op, sum.data(), plane.data, plane.lanes);
      }
    }
    if (is_table_sum(shape.op))
      fold_tables(shape.op, sum.data(), indices.data(), indices.size(), shape.table, shape.lanes);
    for (Round& round : rounds) {
      void* to = is_table_sum(shape.op) ? round.planes[p].sums : round.planes[p].data;
      if (shape.lanes > 0) std::memcpy(to, sum.data(), op_sum_bytes(shape.op, shape.lanes));
    }
    return {};
  }

  std::vector<std::unique_ptr<Codec>> codecs_;
  uint64_t missing_ = 0;  // bit w is worker w
};

}  // namespace addend::testing_support
