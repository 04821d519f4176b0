// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/path_probe.h"

#include <algorithm>
#include <cstring>

namespace addend::service_client {
namespace {

// Ethernet and what tunnels and clouds leave of it, down to what IPv6 and IPv4 promise.
constexpr uint32_t kMtus[] = {8896, 4000, 1500, 1480, 1476, 1460, 1450, 1440,
                              1420, 1400, 1350, 1300, 1280, 1024, 576};
constexpr uint32_t kHeaders = 40 + 8 + ADDEND_FRAME_HEADER_BYTES;  // IPv6, UDP, ours

// The first interval; each is twice as long as the one before. Echoes of some lengths and none of a
// longer one: after 1.3 s it is the length and not bad luck. Nothing at all: after 2.5 s.
constexpr uint64_t kFirstIntervalNs = 20'000'000;
constexpr uint32_t kRoundsForLonger = 6, kRoundsForAny = 7;

}  // namespace

std::vector<uint32_t> probe_payloads(uint32_t most) {
  std::vector<uint32_t> payloads = {most};
  for (const uint32_t mtu : kMtus) {
    const uint32_t payload = (mtu - kHeaders) / 8 * 8;
    if (payload < payloads.back()) payloads.push_back(payload);
  }
  return payloads;
}

Result<PathProbe> PathProbe::create(const addend_control_probe& probe, uint32_t worker,
                                    uint32_t world, uint32_t most) {
  if (probe.threads == 0 || probe.threads > ADDEND_CONTROL_MAX_THREADS ||
      probe.payload_bytes == 0 || probe.payload_bytes > ADDEND_FRAME_MAX_PAYLOAD_BYTES ||
      probe.payload_bytes % 8 != 0) {
    return make_error(Errc::kMalformed, "the server asks for probes that make no sense");
  }
  PathProbe made;
  auto key = auth::FrameKey::create(auth::Secret(probe.secret), probe.payload_bytes);
  if (!key) return key.error();
  made.key_ = *std::move(key);
  made.payloads_ = probe_payloads(std::min(most, probe.payload_bytes));
  made.best_.assign(probe.threads, made.payloads_.size());
  made.frame_.resize(ADDEND_FRAME_HEADER_BYTES + made.payloads_[0]);
  made.header_.magic = ADDEND_FRAME_MAGIC;
  made.header_.version = ADDEND_FRAME_VERSION;
  made.header_.kind = ADDEND_FRAME_PROBE;
  made.header_.epoch = probe.number;
  made.header_.worker = static_cast<uint8_t>(worker);
  made.header_.world = static_cast<uint8_t>(world);
  made.header_.boot = probe.boot;
  return made;
}

std::span<const PathProbe::One> PathProbe::collect(uint64_t now_ns) {
  out_.clear();
  if (now_ns < next_ns_) return out_;
  for (std::size_t i = first_; i < payloads_.size(); ++i) {
    for (std::size_t t = 0; t < best_.size(); ++t) {
      if (i < best_[t]) out_.push_back({static_cast<uint32_t>(t), payloads_[i]});
    }
  }
  next_ns_ = now_ns + (kFirstIntervalNs << sent_ns_.size());
  sent_ns_.push_back(now_ns);
  return out_;
}

std::span<const uint8_t> PathProbe::frame(const One& one) {
  addend_frame_header header = header_;
  header.slot = static_cast<uint16_t>(one.thread);
  header.turn = static_cast<uint32_t>(sent_ns_.size() - 1);
  header.length = static_cast<uint16_t>(one.payload_bytes);
  addend_frame_swap(&header);
  const auto frame = std::span<uint8_t>(frame_).first(sizeof(header) + one.payload_bytes);
  header.tag = addend_be64(key_.tag(header, frame.subspan(sizeof(header))));
  std::memcpy(frame.data(), &header, sizeof(header));
  return frame;
}

void PathProbe::too_long(uint32_t payload_bytes) {
  while (first_ < payloads_.size() && payloads_[first_] >= payload_bytes)
    ++first_;
}

void PathProbe::receive(std::span<const uint8_t> datagram, uint64_t now_ns) {
  addend_frame_header wire;
  if (datagram.size() < sizeof(wire)) return;
  std::memcpy(&wire, datagram.data(), sizeof(wire));
  const addend_frame_header header = addend_frame_read(datagram.data());
  const auto payload = datagram.subspan(sizeof(wire));
  const auto length = std::find(payloads_.begin(), payloads_.end(), payload.size());
  if (header.magic != ADDEND_FRAME_MAGIC || header.version != ADDEND_FRAME_VERSION ||
      header.kind != ADDEND_FRAME_ECHO || header.epoch != header_.epoch ||
      header.slot >= best_.size() || header.turn >= sent_ns_.size() || length == payloads_.end() ||
      !key_.verify(wire, payload)) {
    return;
  }
  const uint64_t took = std::max(now_ns - sent_ns_[header.turn], uint64_t{1});
  round_trip_ns_ = round_trip_ns_ == 0 ? took : std::min(round_trip_ns_, took);
  std::size_t& best = best_[header.slot];
  best = std::min(best, static_cast<std::size_t>(length - payloads_.begin()));
}

std::size_t PathProbe::worst() const { return *std::max_element(best_.begin(), best_.end()); }

bool PathProbe::done(uint64_t now_ns) const {
  const bool some = worst() < payloads_.size();
  if (some && worst() <= first_) return true;
  return sent_ns_.size() >= (some ? kRoundsForLonger : kRoundsForAny) && now_ns >= next_ns_;
}

uint32_t PathProbe::payload_bytes() const {
  return worst() < payloads_.size() ? payloads_[worst()] : 0;
}

}  // namespace addend::service_client
