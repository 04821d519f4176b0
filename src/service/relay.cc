// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "net/udp_socket.h"
#include "service/data_plane.h"

namespace addend::service {

Relay::Relay(std::shared_ptr<Upstream> upstream)
    : upstream_(std::move(upstream)), bytes_(net::kMaxSuperBytes) {}

void Relay::add(const aggregate::Reply& reply) {
  const Upstream& up = *upstream_;
  const std::size_t bytes = ADDEND_FRAME_HEADER_BYTES + reply.payload.size();
  const std::size_t thread = uint64_t{reply.header.slot} * up.threads.size() / up.welcome.slots;
  const std::size_t row = used_ - row_begin_;
  if (bytes != segment_ || thread != row_thread_ || row >= bytes * net::kMaxSegments) send_row();
  segment_ = bytes;
  row_thread_ = thread;
  if (used_ + bytes > bytes_.size()) send_all();
  addend_frame_header header = reply.header;
  header.epoch = up.welcome.epoch;
  header.boot = up.welcome.boot;
  header.worker = static_cast<uint8_t>(up.leaf);
  header.world = static_cast<uint8_t>(up.leaves);
  header.contributors = uint64_t{1} << up.leaf;
  addend_frame_swap(&header);
  header.tag = addend_be64(up.worker_key.tag(header, reply.payload));
  uint8_t* frame = bytes_.data() + used_;
  std::memcpy(frame, &header, sizeof(header));
  std::memcpy(frame + sizeof(header), reply.payload.data(), reply.payload.size());
  used_ += bytes;
}

void Relay::send_row() {
  if (used_ == row_begin_) return;
  upstream_->sink->send(upstream_->threads[row_thread_],
                        {bytes_.data() + row_begin_, used_ - row_begin_},
                        static_cast<uint32_t>(segment_));
  row_begin_ = used_;
}

void Relay::send_all() {
  send_row();
  upstream_->sink->flush();
  used_ = row_begin_ = 0;
}

bool Relay::flush() {
  if (used_ == 0) return true;
  send_all();
  return !upstream_->sink->was_too_long();
}

addend_refusal Relay::check(std::span<const uint8_t> datagram, addend_frame_header& header) const {
  const Upstream& up = *upstream_;
  if (datagram.size() < sizeof(header)) return ADDEND_REFUSAL_TRUNCATED;
  addend_frame_header wire;
  std::memcpy(&wire, datagram.data(), sizeof(wire));
  header = addend_frame_read(datagram.data());
  const auto payload = datagram.subspan(sizeof(wire));
  if (header.magic != ADDEND_FRAME_MAGIC || header.version != ADDEND_FRAME_VERSION)
    return ADDEND_REFUSAL_MAGIC;
  // A notice comes over the control connection, too, and from there the registry learns of it.
  if (header.kind != ADDEND_FRAME_RESULT) return ADDEND_REFUSAL_KIND;
  if (header.epoch != up.welcome.epoch) return ADDEND_REFUSAL_EPOCH;
  if (header.boot != up.welcome.boot) return ADDEND_REFUSAL_BOOT;
  if (header.length != payload.size() || payload.size() > up.welcome.payload_bytes)
    return ADDEND_REFUSAL_LENGTH;
  return up.result_key.verify(wire, payload) ? ADDEND_REFUSAL_NONE : ADDEND_REFUSAL_TAG;
}

}  // namespace addend::service
