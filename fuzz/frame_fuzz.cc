// SPDX-License-Identifier: Apache-2.0
// Any bytes as a datagram to an aggregator: what passes the checks is consistent with itself, and
// garbage is refused, counted, and never answered.
#include <cstdint>
#include <cstring>

#include "aggregate/slots.h"
#include "fuzz/input.h"

using addend::fuzz::require;

namespace {

addend::aggregate::Slots make_slots() {
  addend::aggregate::SlotsOptions options;
  options.epoch = 1;
  options.boot = 2;
  options.world = 2;
  options.slots = 4;
  options.payload_bytes = 256;
  options.ops = (1u << ADDEND_OP_COUNT) - 1;
  auto slots = addend::aggregate::Slots::create(options);
  require(slots.has_value());
  slots->set_table(1, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  return *std::move(slots);
}

void check_datagram(addend::aggregate::Slots& slots, const uint8_t* data, uint32_t size) {
  addend_frame_header header;
  if (size < sizeof(header)) return;
  std::memcpy(&header, data, sizeof(header));
  addend_frame_swap(&header);
  addend_frame_header back = header;
  addend_frame_swap(&back);
  require(std::memcmp(&back, data, sizeof(back)) == 0);

  const addend_refusal refusal = addend_contribution_check(&header, size);
  const uint64_t folded = slots.counters().folded;
  const auto outcome = slots.handle(header, data + sizeof(header), size, 0);
  if (refusal != ADDEND_REFUSAL_NONE) {
    require(outcome.refusal == refusal);
    require(outcome.reply.audience == addend::aggregate::Audience::kNobody);
    require(slots.counters().folded == folded);
    return;
  }
  require(header.length + sizeof(header) == size);
  require(header.contributors == uint64_t{1} << header.worker);
  if (outcome.reply.header.kind == ADDEND_FRAME_RESULT) {
    require(outcome.reply.payload.size() == outcome.reply.header.length);
    require(outcome.reply.header.length <= slots.options().payload_bytes);
  }
}

}  // namespace

// The input is a row of datagrams, each behind its length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  addend::aggregate::Slots slots = make_slots();
  for (size_t at = 0; at + 2 <= size;) {
    const uint32_t wanted = static_cast<uint32_t>(data[at] | data[at + 1] << 8);
    at += 2;
    const auto bytes = static_cast<uint32_t>(std::min<size_t>(wanted, size - at));
    check_datagram(slots, data + at, bytes);
    at += bytes;
  }
  return 0;
}
