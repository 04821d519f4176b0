// SPDX-License-Identifier: Apache-2.0
// Any bytes as datagrams to a worker: without the job's tag they are ignored; with it (the input
// may ask for it) they are an aggregator's that went mad, and may end the epoch or bring sums of
// the shape that was asked for, once for each chunk.
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "fuzz/input.h"
#include "reduce/service/stream.h"
#include "tests/support/keys.h"

using addend::Op;
using addend::fuzz::require;
using addend::service_client::Arrival;
using addend::service_client::Stream;

namespace {

namespace auth = addend::auth;

constexpr uint32_t kPayload = 64, kSlots = 4;
constexpr uint64_t kChunks = 12;
constexpr uint8_t kRightTag = 0x80;

struct Keys {
  static auth::FrameKey of(uint8_t fill) {
    return *auth::FrameKey::create(addend::testing_support::secret_of(fill), kPayload);
  }
  auth::FrameKey worker = of(1), result = of(2);
};

// Every third chunk a table sum, whose result is longer than the contribution.
Op op_of(uint64_t chunk) { return chunk % 3 == 2 ? Op::kTableSumU16 : Op::kSumI32; }
uint32_t lanes_of(uint64_t chunk) { return 2 + static_cast<uint32_t>(chunk % 5) * 2; }

void advance(Stream& stream, uint64_t now_ns) {
  const std::vector<uint8_t> lanes(kPayload, 3);
  for (uint64_t number = 0; stream.next(number);) {
    const auto bytes = addend::op_bytes(op_of(number), lanes_of(number));
    stream.add(number, {op_of(number), {lanes.data(), bytes}, 0, number % 3 == 0});
  }
  for (const Stream::Frame& frame : stream.collect(now_ns))
    require(frame.slot < kSlots && frame.bytes.size() <= ADDEND_FRAME_HEADER_BYTES + kPayload);
}

bool retag(const auth::FrameKey& key, std::vector<uint8_t>& datagram, bool put) {
  addend_frame_header wire;
  if (datagram.size() < sizeof(wire) || datagram.size() > sizeof(wire) + kPayload) return false;
  std::memcpy(&wire, datagram.data(), sizeof(wire));
  const uint64_t tag =
      addend_be64(key.tag(wire, std::span<const uint8_t>(datagram).subspan(sizeof(wire))));
  const bool right = wire.tag == tag;
  wire.tag = tag;
  if (put) std::memcpy(datagram.data(), &wire, sizeof(wire));
  return put || right;
}

}  // namespace

// The input is a row of datagrams, each behind a byte (whether its tag is to be made right) and its
// length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Keys keys;
  Stream stream(kSlots, kPayload);
  addend::service_client::EpochView view;
  view.epoch = 7;
  view.boot = 9;
  view.world = 2;
  view.worker_key = &keys.worker;
  view.result_key = &keys.result;
  require(stream.enter(view).has_value());
  stream.extend(kChunks);
  advance(stream, 0);
  std::set<uint64_t> arrived;
  std::vector<uint8_t> datagram;
  uint64_t now_ns = 0;
  for (size_t at = 0; at + 3 <= size;) {
    const uint8_t control = data[at];
    const auto wanted = static_cast<size_t>(data[at + 1] | data[at + 2] << 8);
    at += 3;
    datagram.assign(data + at, data + at + std::min(wanted, size - at));
    at += datagram.size();
    const bool authentic = retag(keys.result, datagram, (control & kRightTag) != 0);
    now_ns += 100'000 + uint64_t{control & 15u} * 10'000'000;
    Arrival arrival{};
    addend_control_ended ended{};
    const Stream::Verdict verdict = stream.receive(datagram, now_ns, arrival, ended);
    require(authentic || verdict == Stream::Verdict::kIgnored);
    if (verdict == Stream::Verdict::kNotice) return 0;
    if (verdict == Stream::Verdict::kArrived) {
      require(arrival.number < kChunks && arrived.insert(arrival.number).second);
      require(arrival.sums.size() ==
              addend::op_sum_bytes(op_of(arrival.number), lanes_of(arrival.number)));
    }
    advance(stream, now_ns);
    require(stream.complete() == (arrived.size() == kChunks));
  }
  return 0;
}
