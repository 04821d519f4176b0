// SPDX-License-Identifier: Apache-2.0
// The rounds of ExactCodec in gather mode: how long everybody's message is, then all messages, each
// where nobody else has anything; and what other modes learn about it.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/bits.h"
#include "codec/exact/exact.h"

namespace addend::exact {

// The length of the message that this worker would send, for the choice of later steps.
void ExactCodec::add_own_plane(Round& round) {
  if (!plan_.counts_own()) return;
  own_lane_ = static_cast<uint32_t>(std::min<uint64_t>(
      own_lanes(nonzeros(), index_.nonzeros(), width()), std::numeric_limits<uint32_t>::max()));
  round.add({Op::kMaxU32, 1, &own_lane_, nullptr, nullptr});
}

Status ExactCodec::open_sizes(Round& round) {
  const uint32_t world = layout().world, own = layout().worker;
  ADDEND_TRY(sizes_.reserve(world * 8));
  auto* sizes = sizes_.as<uint64_t>();
  std::fill_n(sizes, world, 0);
  sizes[own] = own_size_ = own_lanes(nonzeros(), index_.nonzeros(), width());
  bounds_.resize(world + uint64_t{1});
  for (uint32_t w = 0; w <= world; ++w)
    bounds_[w] = w;
  round.add({Op::kOrU64, world, sizes, nullptr, nullptr, bounds_.data()});
  waiting_ = Waiting::kSizes;
  return {};
}

Result<bool> ExactCodec::close_sizes(Round& round) {
  const uint32_t own = layout().worker;
  const Result<uint64_t> most =
      bound_messages({sizes_.as<uint64_t>(), layout().world}, layout(), own_size_, bounds_);
  ADDEND_TRY(most);
  most_own_ = *most;
  waiting_ = Waiting::kMessages;
  const uint64_t lanes = bounds_.back();
  if (lanes == 0) return close_messages();
  ADDEND_TRY(messages_plane_.reserve(lanes * 8));
  auto* plane = messages_plane_.as<uint64_t>();
  std::memset(plane, 0, lanes * 8);  // for reducers that know nothing of bounds
  write_own(nonzeros(), index_.nonzeros(), layout().dtype, scale(), plane + bounds_[own]);
  round.add({Op::kOrU64, lanes, plane, nullptr, nullptr, bounds_.data()});
  round.last = true;
  return true;
}

Result<bool> ExactCodec::close_messages() {
  waiting_ = Waiting::kLast;
  messages_.clear();
  for (uint32_t w = 0; w < layout().world; ++w) {
    const Result<OwnMessage> message =
        OwnMessage::read(messages_plane_.as<uint64_t>() + bounds_[w], bounds_[w + 1] - bounds_[w],
                         layout().count, layout().dtype);
    ADDEND_TRY(message);
    messages_.push_back(*message);
  }
  ADDEND_TRY(index_.reserve_bitmap());
  std::memset(bitmap(), 0, words() * 8);
  for (const OwnMessage& message : messages_)
    message.mark(bitmap());
  index_.close_bitmap();
  ADDEND_TRY(accept_union());
  return false;
}

void ExactCodec::add_messages(void* gradient) const {
  index_.clear(gradient);
  for (const OwnMessage& message : messages_)
    message.add_to(gradient);
}

}  // namespace addend::exact
