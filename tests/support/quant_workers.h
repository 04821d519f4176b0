// SPDX-License-Identifier: Apache-2.0
// The quant codecs of all workers in one thread, under an adder of plain loops (codec tests do not
// link `fold`) that may lose workers and may lie about the sums.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "addend/codec.h"

namespace addend::testing_support {

using Bytes = std::vector<uint8_t>;
using Gradients = std::vector<Bytes>;

class QuantWorkers {
 public:
  /// Called with the number of the round, a plane's shape and the bytes of its sums, before the
  /// workers see them.
  using Tamper = std::function<void(uint32_t, const Plane&, std::span<uint8_t>)>;

  /// REQUIRES: a spec and a layout that create_codec accepts.
  QuantWorkers(const std::string& spec, Layout layout) {
    for (layout.worker = 0; layout.worker < layout.world; ++layout.worker) {
      auto codec = create_codec(*CodecSpec::parse(spec), layout);
      if (!codec) std::abort();
      codecs_.push_back(std::move(*codec));
    }
  }

  /// One step: every gradient becomes the sum. The first error ends the step on all workers.
  Status step(Gradients& gradients, const Tamper& tamper = nullptr) {
    const Status status = try_step(gradients, tamper);
    for (const auto& codec : codecs_)
      codec->cancel();
    return status;
  }

  /// The sums are without this worker.
  void leave_out(uint32_t w, bool missing = true) {
    const uint64_t bit = uint64_t{1} << w;
    missing_ = missing ? missing_ | bit : missing_ & ~bit;
  }

  Codec& codec(uint32_t w) { return *codecs_[w]; }
  const Report& report() const { return codecs_[0]->report(); }

 private:
  Status try_step(Gradients& gradients, const Tamper& tamper) {
    for (std::size_t w = 0; w < codecs_.size(); ++w) {
      ADDEND_TRY(codecs_[w]->begin(gradients[w].data()));
      ADDEND_TRY(codecs_[w]->set_missing(missing_));
    }
    for (uint32_t number = 0;; ++number) {
      std::vector<Round> rounds(codecs_.size());
      bool more = false;
      for (std::size_t w = 0; w < codecs_.size(); ++w) {
        const Result<bool> next = codecs_[w]->next_round(rounds[w]);
        ADDEND_TRY(next);
        if (w > 0 && (*next != more || rounds[w].size != rounds[0].size))
          return make_error(Errc::kMismatch, "workers disagree about a round");
        more = *next;
      }
      if (!more) break;
      for (std::size_t p = 0; p < rounds[0].size; ++p)
        ADDEND_TRY(reduce(rounds, p, number, tamper));
    }
    for (std::size_t w = 0; w < codecs_.size(); ++w) {
      ADDEND_TRY(codecs_[w]->finish(gradients[w].data()));
    }
    return {};
  }

  template <typename T, typename Lane>
  static void add(std::vector<uint8_t>& sums, uint64_t lanes, Lane&& lane) {
    for (uint64_t i = 0; i < lanes; ++i) {
      T sum{};
      std::memcpy(&sum, sums.data() + i * sizeof(T), sizeof(T));
      sum = static_cast<T>(sum + lane(i));
      std::memcpy(sums.data() + i * sizeof(T), &sum, sizeof(T));
    }
  }

  static void add(const Plane& plane, std::vector<uint8_t>& sums) {
    const auto number = [&](uint64_t i) {
      const auto* bytes = static_cast<const uint8_t*>(plane.data);
      return i % 2 == 0 ? bytes[i / 2] & 15u : bytes[i / 2] >> 4u;
    };
    switch (plane.op) {
      case Op::kSumU8:
        return add<uint8_t>(sums, plane.lanes,
                            [&](uint64_t i) { return static_cast<const uint8_t*>(plane.data)[i]; });
      case Op::kSumU16:
        return add<uint16_t>(sums, plane.lanes, [&](uint64_t i) {
          return static_cast<const uint16_t*>(plane.data)[i];
        });
      case Op::kSumI32:
        return add<uint32_t>(sums, plane.lanes, [&](uint64_t i) {
          return static_cast<const uint32_t*>(plane.data)[i];
        });
      case Op::kTableSumU8:
        return add<uint8_t>(sums, plane.lanes, [&](uint64_t i) {
          return static_cast<const uint8_t*>(plane.table)[number(i)];
        });
      case Op::kTableSumU16:
        return add<uint16_t>(sums, plane.lanes, [&](uint64_t i) {
          return static_cast<const uint16_t*>(plane.table)[number(i)];
        });
      default:
        std::abort();
    }
  }

  static void raise(const Plane& plane, std::vector<uint8_t>& most) {
    for (uint64_t i = 0; i < plane.lanes; ++i) {
      uint32_t have = 0;
      std::memcpy(&have, most.data() + 4 * i, 4);
      have = std::max(have, static_cast<const uint32_t*>(plane.data)[i]);
      std::memcpy(most.data() + 4 * i, &have, 4);
    }
  }

  static void unite(const Plane& plane, std::vector<uint8_t>& bits) {
    const auto* from = static_cast<const uint8_t*>(plane.data);
    for (std::size_t i = 0; i < bits.size(); ++i)
      bits[i] = static_cast<uint8_t>(bits[i] | from[i]);
  }

  Status reduce(std::vector<Round>& rounds, std::size_t p, uint32_t number, const Tamper& tamper) {
    const Plane& shape = rounds[0].planes[p];
    std::vector<uint8_t> sums(op_sum_bytes(shape.op, shape.lanes), 0);
    for (std::size_t w = 0; w < rounds.size(); ++w) {
      const Plane& plane = rounds[w].planes[p];
      if (plane.op != shape.op || plane.lanes != shape.lanes)
        return make_error(Errc::kMismatch, "workers sent different planes");
      if (w < 64 && (missing_ >> w & 1) != 0) continue;
      if (plane.op == Op::kOrU64) {
        unite(plane, sums);
      } else {
        plane.op == Op::kMaxU32 ? raise(plane, sums) : add(plane, sums);
      }
    }
    if (tamper) tamper(number, shape, sums);
    for (Round& round : rounds) {
      void* to = is_table_sum(shape.op) ? round.planes[p].sums : round.planes[p].data;
      std::memcpy(to, sums.data(), sums.size());
    }
    return {};
  }

  std::vector<std::unique_ptr<Codec>> codecs_;
  uint64_t missing_ = 0;  // bit w is worker w
};

}  // namespace addend::testing_support
