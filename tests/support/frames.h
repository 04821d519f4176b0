// SPDX-License-Identifier: Apache-2.0
// Contributions and results as tests see them: bytes with a header in front.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "aggregate/slots.h"
#include "wire/frame.h"
#include "wire/hash.h"

namespace addend::testing_support {

struct Packet {
  addend_frame_header header{};
  std::vector<uint8_t> payload;

  uint32_t bytes() const {
    return static_cast<uint32_t>(ADDEND_FRAME_HEADER_BYTES + payload.size());
  }
};

/// A well-formed contribution to a job, to be bent by tests.
inline Packet contribution(const aggregate::SlotsOptions& job, uint32_t worker, uint32_t slot,
                           uint32_t turn, Op op, std::vector<uint8_t> payload) {
  Packet packet;
  addend_frame_header& header = packet.header;
  header.magic = ADDEND_FRAME_MAGIC;
  header.version = ADDEND_FRAME_VERSION;
  header.kind = ADDEND_FRAME_CONTRIBUTION;
  header.epoch = job.epoch;
  header.boot = job.boot;
  header.turn = turn;
  header.slot = static_cast<uint16_t>(slot);
  header.worker = static_cast<uint8_t>(worker);
  header.world = static_cast<uint8_t>(job.world);
  header.op = static_cast<uint8_t>(op);
  header.count = 1;
  header.length = static_cast<uint16_t>(payload.size());
  header.contributors = uint64_t{1} << worker;
  packet.payload = std::move(payload);
  return packet;
}

/// Payload bytes that depend on everything a wrong sum could mix up. Small, so that 8-bit sums of
/// 64 workers stay in range.
inline std::vector<uint8_t> payload_for(uint64_t seed, uint32_t worker, uint32_t slot,
                                        uint32_t turn, uint32_t bytes) {
  std::vector<uint8_t> payload(bytes);
  const uint64_t stream =
      addend_random(seed, (uint64_t{turn} << 32) ^ (uint64_t{slot} << 8) ^ uint64_t{worker});
  for (uint32_t i = 0; i < bytes; ++i)
    payload[i] = static_cast<uint8_t>(addend_random(stream, i) & 3);
  return payload;
}

inline aggregate::Outcome deliver(aggregate::Slots& slots, const Packet& packet, uint64_t now_ns) {
  return slots.handle(packet.header, packet.payload.data(), packet.bytes(), now_ns);
}

}  // namespace addend::testing_support
