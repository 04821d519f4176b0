// SPDX-License-Identifier: Apache-2.0
// Any bytes as datagrams to a server, from workers and strangers: what is not authentic changes
// nothing and gets no answer; what is (the input may ask for a right tag on its bytes) is folded,
// answered or refused, and counted once. Answers go to workers only. The corpus holds the golden
// traces: same job, same keys.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "fuzz/input.h"
#include "service/data_plane.h"

using addend::fuzz::Input;
using addend::fuzz::require;

namespace {

namespace aggregate = addend::aggregate;
namespace auth = addend::auth;
namespace service = addend::service;

constexpr uint32_t kWorld = 3;
constexpr uint8_t kRightTag = 0x80;

addend::net::Address address_of(uint32_t who) {
  return *addend::net::resolve("10.0.0.1", static_cast<uint16_t>(7000 + who));
}

class Counting final : public service::FrameSink {
 public:
  void send(const addend::net::Address& to, std::span<const uint8_t> bytes, uint32_t) override {
    require(to.port() >= 7000 && to.port() < 7000 + kWorld);
    require(bytes.size() >= ADDEND_FRAME_HEADER_BYTES);
    ++sent;
  }
  void flush() override {}
  uint64_t sent = 0;
};

struct Server {
  Server() {
    uint8_t bytes[auth::Secret::kBytes];
    for (std::size_t i = 0; i < sizeof(bytes); ++i)
      bytes[i] = static_cast<uint8_t>(i * 7 + 1);
    const auth::Secret secret{std::span<const uint8_t, auth::Secret::kBytes>(bytes)};
    const auto key = [&](const char* purpose, uint32_t number) {
      return *auth::FrameKey::create(*auth::derive_secret(secret, purpose, number),
                                     ADDEND_FRAME_MAX_PAYLOAD_BYTES);
    };
    auto epoch = std::make_shared<service::JobEpoch>();
    epoch->slots.epoch = 0x0A0B0C0D;
    epoch->slots.boot = 0x51525354;
    epoch->slots.world = kWorld;
    epoch->slots.slots = 4;
    epoch->slots.payload_bytes = 64;
    epoch->slots.ops = (1u << ADDEND_OP_COUNT) - 1;
    for (uint32_t w = 0; w < kWorld; ++w) {
      epoch->worker_keys.push_back(key("worker", w));
      epoch->workers.push_back(address_of(w));
    }
    epoch->result_key = key("result", 0);
    job = std::move(epoch);
    for (uint32_t who = 0; who <= kWorld; ++who)
      addresses.push_back(address_of(who));
  }
  void restart() {
    plane.remove(job->slots.epoch);
    auto slots = aggregate::Slots::create(job->slots);
    require(slots.has_value());
    slots->set_table(1, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    plane.add(job, *std::move(slots));
  }

  Counting sink;
  service::DataPlane plane{sink};
  std::shared_ptr<const service::JobEpoch> job;
  std::vector<addend::net::Address> addresses;
};

void put_tag(const service::JobEpoch& job, std::vector<uint8_t>& datagram) {
  addend_frame_header wire;
  if (datagram.size() < sizeof(wire) || datagram.size() > ADDEND_FRAME_MAX_PAYLOAD_BYTES) return;
  std::memcpy(&wire, datagram.data(), sizeof(wire));
  const auto payload = std::span<const uint8_t>(datagram).subspan(sizeof(wire));
  wire.tag = addend_be64(job.worker_keys[wire.worker % kWorld].tag(wire, payload));
  std::memcpy(datagram.data(), &wire, sizeof(wire));
}

// Written from the protocol's page, not from the server's checks: of a worker, with its tag.
bool authentic(const service::JobEpoch& job, uint32_t who, const std::vector<uint8_t>& datagram) {
  addend_frame_header wire;
  if (datagram.size() < sizeof(wire) || datagram.size() > ADDEND_FRAME_MAX_PAYLOAD_BYTES)
    return false;
  std::memcpy(&wire, datagram.data(), sizeof(wire));
  if (wire.worker >= kWorld || wire.worker != who) return false;
  const auto payload = std::span<const uint8_t>(datagram).subspan(sizeof(wire));
  return job.worker_keys[who].tag(wire, payload) == addend_be64(wire.tag);
}

uint64_t sum(const std::array<uint64_t, ADDEND_REFUSAL_COUNT>& counts) {
  uint64_t all = 0;
  for (const uint64_t count : counts)
    all += count;
  return all;
}

}  // namespace

// The input is a row of datagrams, each behind a byte (who sends it, and whether its tag is to be
// made right) and its length.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Server server;
  server.restart();
  const uint64_t before = sum(server.plane.status(0).refused);
  uint64_t datagrams = 0;
  std::vector<uint8_t> datagram;
  for (size_t at = 0; at + 3 <= size; ++datagrams) {
    const uint8_t control = data[at];
    const uint32_t who = control % (kWorld + 1);
    const auto wanted = static_cast<size_t>(data[at + 1] | data[at + 2] << 8);
    at += 3;
    datagram.assign(data + at, data + at + std::min(wanted, size - at));
    at += datagram.size();
    if ((control & kRightTag) != 0) put_tag(*server.job, datagram);
    const bool answerable = authentic(*server.job, who, datagram);
    const uint64_t sent = server.sink.sent;
    server.plane.receive(server.addresses[who], datagram, 1u << 16, datagrams);
    server.plane.flush();
    require(answerable || server.sink.sent == sent);
  }
  const service::DataPlaneStatus status = server.plane.status(0);
  const aggregate::Counters& counters = status.epochs[0].counters;
  require(datagrams == counters.folded + sum(counters.refused) + sum(status.refused) - before +
                           counters.answered - counters.refused[ADDEND_REFUSAL_LATE]);
  return 0;
}
