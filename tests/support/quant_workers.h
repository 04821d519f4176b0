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
#include "wire/narrow.h"

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

  /// What lane i of a narrow sum's plane says.
  static uint32_t level(const Plane& plane, uint64_t i) {
    const uint32_t bits = addend_op_index_bits(static_cast<addend_op>(plane.op));
    const auto* bytes = static_cast<const uint8_t*>(plane.data);
    if (bits == 8) return bytes[i];
    uint32_t index = 0;
    for (uint64_t bit = 0; bit < bits; ++bit) {
      const uint64_t at = i * bits + bit;
      index |= (bytes[at / 8] >> at % 8 & 1u) << bit;
    }
    return static_cast<const uint8_t*>(plane.table)[index];
  }

  /// docs/formats/planes.md, "Narrow sums".
  static void narrow(Op op, const std::vector<uint32_t>& whole, std::vector<uint8_t>& sums) {
    const uint32_t bits = addend_op_narrow_bits(static_cast<addend_op>(op)), top = (1u << bits) - 1;
    for (uint64_t begin = 0; begin < whole.size(); begin += narrow::kGroupLanes) {
      const uint64_t end = std::min<uint64_t>(begin + narrow::kGroupLanes, whole.size());
      uint32_t least = ~0u, most = 0, seed = 0;
      for (uint64_t i = begin; i < end; ++i) {
        least = std::min(least, whole[i]);
        most = std::max(most, whole[i]);
        seed += static_cast<uint32_t>(2 * (i - begin) + 1) * whole[i];
      }
      const narrow::Group group{least, std::max(1u, (most - least + top - 1) / top), seed & 255};
      uint8_t* at = sums.data() + narrow::group_at(bits, begin / narrow::kGroupLanes);
      narrow::write_group(group, at);
      for (uint32_t i = 0; i < end - begin; ++i) {
        uint8_t& byte = at[ADDEND_NARROW_HEADER_BYTES + i * bits / 8];
        byte = static_cast<uint8_t>(byte | narrow::narrowed(group, i, whole[begin + i])
                                               << i * bits % 8);
      }
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
    const bool narrows = addend_op_is_narrow(static_cast<addend_op>(shape.op)) != 0;
    std::vector<uint32_t> whole(narrows ? shape.lanes : 0, 0);
    for (std::size_t w = 0; w < rounds.size(); ++w) {
      const Plane& plane = rounds[w].planes[p];
      if (plane.op != shape.op || plane.lanes != shape.lanes)
        return make_error(Errc::kMismatch, "workers sent different planes");
      if (w < 64 && (missing_ >> w & 1) != 0) continue;
      if (narrows) {
        for (uint64_t i = 0; i < plane.lanes; ++i)
          whole[i] += level(plane, i);
      } else if (plane.op == Op::kOrU64) {
        unite(plane, sums);
      } else {
        plane.op == Op::kMaxU32 ? raise(plane, sums) : add(plane, sums);
      }
    }
    if (narrows) narrow(shape.op, whole, sums);
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
