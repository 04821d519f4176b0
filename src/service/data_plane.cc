// SPDX-License-Identifier: Apache-2.0
#include "service/data_plane.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "auth/siphash.h"
#include "net/udp_socket.h"

namespace addend::service {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
// A worker may send this long a burst of its granted rate at once.
constexpr uint64_t kBurstNs = kSecondNs / 10;
// Frames that are read, verified and folded together: few enough that their payloads are still in
// the first-level cache when they are folded.
constexpr std::size_t kTogether = auth::kTagsAtOnce;

// Without a tag.
void write_frame(const aggregate::Reply& reply, uint8_t* to) {
  addend_frame_write(reply.header, to);
  if (!reply.payload.empty()) {
    std::memcpy(to + ADDEND_FRAME_HEADER_BYTES, reply.payload.data(), reply.payload.size());
  }
}

// Tags frames in a row, at most a super-packet.
void tag_frames(const auth::FrameKey& key, std::span<uint8_t> bytes, std::size_t segment) {
  std::array<auth::KeyedFrame, net::kMaxSegments> frames;
  std::array<uint64_t, net::kMaxSegments> tags;
  std::size_t count = 0;
  for (std::size_t at = 0; at < bytes.size(); at += segment)
    frames[count++] = {&key, bytes.subspan(at, segment)};
  auth::FrameKey::tag_all({frames.data(), count}, tags.data());
  for (std::size_t i = 0; i < count; ++i) {
    const uint64_t wire = addend_be64(tags[i]);
    std::memcpy(bytes.data() + i * segment + offsetof(addend_frame_header, tag), &wire, 8);
  }
}

void add_counters(aggregate::Counters& to, const aggregate::Counters& from) {
  to.folded += from.folded;
  to.complete += from.complete;
  to.answered += from.answered;
  to.resent += from.resent;
  for (std::size_t i = 0; i < to.refused.size(); ++i)
    to.refused[i] += from.refused[i];
  for (std::size_t w = 0; w < to.last.size(); ++w)
    to.last[w] += from.last[w];
}

void add_counters(DataPlaneStatus& to, const dataplane::DriverCounters& from) {
  to.packets += from.packets;
  to.bytes += from.bytes;
  to.sent_packets += from.sent_packets;
  to.sent_bytes += from.sent_bytes;
  to.driver_packets += from.packets;
}

}  // namespace

DataPlane::DataPlane(FrameSink& sink, OnEnded on_ended)
    : sink_(sink),
      on_ended_(std::move(on_ended)),
      super_(net::kMaxSuperBytes),
      singles_(net::kMaxSuperBytes) {}

void DataPlane::add(std::shared_ptr<const JobEpoch> job, aggregate::Slots slots,
                    std::unique_ptr<dataplane::DriverPart> driver) {
  const uint32_t epoch = job->slots.epoch;
  if (job->slots.patience_ns > 0) ++patient_jobs_;
  if (driver) driver->give_all(slots);
  auto relay = job->upstream ? std::make_unique<Relay>(job->upstream) : nullptr;
  parts_.emplace(epoch,
                 Part{std::move(job), std::move(slots), std::move(driver), std::move(relay)});
  latest_ = nullptr;
}

void DataPlane::set_table(uint32_t epoch, uint32_t number, const aggregate::Table& table) {
  Part* part = find(epoch);
  if (part == nullptr) return;
  part->slots.set_table(number, table);
  if (part->driver) part->driver->set_table(number, table);
}

void DataPlane::leave(uint32_t epoch, uint32_t worker) {
  Part* part = find(epoch);
  if (part != nullptr && part->job->slots.quorum == 0) part->left |= uint64_t{1} << worker;
}

void DataPlane::end(uint32_t epoch, addend_notice why, uint32_t worker) {
  Part* part = find(epoch);
  if (part == nullptr || part->slots.ended()) return;
  aggregate::Reply reply;
  part->slots.end(why, worker, reply);
  share(*part);
  reply_to_everyone(*part, reply);
  flush();
}

void DataPlane::remove(uint32_t epoch) {
  const Part* part = find(epoch);
  if (part == nullptr) return;
  flush();  // replies that wait point to the part
  if (part->job->slots.patience_ns > 0) --patient_jobs_;
  // What was received and sent stays so, whoever did it.
  if (part->driver) add_counters(status_, part->driver->counters());
  parts_.erase(epoch);
  latest_ = nullptr;
}

void DataPlane::expect(const std::shared_ptr<Probe>& probe, uint32_t thread) {
  std::erase_if(probes_, [](const auto& one) { return one.second.probe.expired(); });
  probes_[probe->number] = {probe, uint64_t{1} << thread};
}

// The kernel says that a datagram is too long, and to which address, but not of which job.
void DataPlane::end_path(const net::Address& worker) {
  for (auto& [epoch, part] : parts_) {
    const std::vector<net::Address>& workers = part.job->workers;
    const auto found = std::find(workers.begin(), workers.end(), worker);
    if (found == workers.end() || part.slots.ended()) continue;
    aggregate::Reply reply;
    part.slots.end(ADDEND_NOTICE_PATH, static_cast<uint32_t>(found - workers.begin()), reply);
    share(part);
    tell_end(reply);
    reply_to_everyone(part, reply);
  }
  flush();
}

DataPlane::Part* DataPlane::find(uint32_t epoch) {
  if (latest_ != nullptr && latest_->job->slots.epoch == epoch) return latest_;
  const auto found = parts_.find(epoch);
  if (found == parts_.end()) return nullptr;
  latest_ = &found->second;
  return latest_;
}

void DataPlane::receive(const net::Address& from, std::span<const uint8_t> datagrams,
                        uint32_t segment, uint64_t now_ns) {
  std::array<Arrival, kTogether> arrivals;
  do {
    std::size_t count = 0;
    do {
      const auto datagram = datagrams.first(std::min<std::size_t>(segment, datagrams.size()));
      datagrams = datagrams.subspan(datagram.size());
      if (read(from, datagram, now_ns, arrivals[count])) ++count;
    } while (!datagrams.empty() && count < kTogether);
    take({arrivals.data(), count}, now_ns);
  } while (!datagrams.empty());
}

bool DataPlane::read(const net::Address& from, std::span<const uint8_t> datagram, uint64_t now_ns,
                     Arrival& arrival) {
  ++status_.packets;
  status_.bytes += datagram.size();
  addend_frame_header& header = arrival.header;
  if (datagram.size() < sizeof(header)) {
    ++status_.refused[ADDEND_REFUSAL_TRUNCATED];
    return false;
  }
  header = addend_frame_read(datagram.data());
  if (header.kind == ADDEND_FRAME_PROBE) {
    const addend_refusal refusal = echo(from, header, datagram);
    if (refusal != ADDEND_REFUSAL_NONE) ++status_.refused[refusal];
    return false;
  }
  const auto bytes = static_cast<uint32_t>(datagram.size());
  const addend_refusal malformed = addend_contribution_check(&header, bytes);
  Part* part = malformed == ADDEND_REFUSAL_NONE ? find(header.epoch) : nullptr;
  if (part == nullptr) {
    ++status_.refused[malformed == ADDEND_REFUSAL_NONE ? ADDEND_REFUSAL_EPOCH : malformed];
    return false;
  }
  const addend_refusal refusal = admit(*part, header, from, now_ns);
  if (refusal != ADDEND_REFUSAL_NONE) {
    ++part->refused[refusal];
    return false;
  }
  arrival.part = part;
  arrival.bytes = datagram;
  return true;
}

addend_refusal DataPlane::echo(const net::Address& from, const addend_frame_header& header,
                               std::span<const uint8_t> datagram) {
  if (header.magic != ADDEND_FRAME_MAGIC || header.version != ADDEND_FRAME_VERSION) {
    return ADDEND_REFUSAL_MAGIC;
  }
  const auto payload = datagram.subspan(ADDEND_FRAME_HEADER_BYTES);
  if (header.length != payload.size()) return ADDEND_REFUSAL_LENGTH;
  const auto expected = probes_.find(header.epoch);
  const auto probe = expected == probes_.end() ? nullptr : expected->second.probe.lock();
  if (probe == nullptr || probe->boot != header.boot) return ADDEND_REFUSAL_EPOCH;
  if (header.length > probe->payload_bytes) return ADDEND_REFUSAL_LENGTH;
  addend_frame_header wire = header;
  addend_frame_swap(&wire);
  if (!probe->key.verify(wire, payload)) return ADDEND_REFUSAL_TAG;
  if (!(probe->worker == from)) {
    probe->misdirected = true;
    return ADDEND_REFUSAL_SOURCE;
  }
  probe->heard |= expected->second.thread;
  uint32_t left = probe->echoes;
  while (left > 0 && !probe->echoes.compare_exchange_weak(left, left - 1)) {
  }
  if (left == 0) return ADDEND_REFUSAL_RATE;
  aggregate::Reply reply{aggregate::Audience::kSender, header, payload};
  reply.header.kind = ADDEND_FRAME_ECHO;
  reply_to_one(probe->key, from, reply);
  return ADDEND_REFUSAL_NONE;
}

// Cheap checks first, so that a flood of forgeries costs little; nothing is remembered of a frame
// that does not pass them all.
addend_refusal DataPlane::admit(Part& part, const addend_frame_header& header,
                                const net::Address& from, uint64_t now_ns) const {
  const JobEpoch& job = *part.job;
  if (header.world != job.slots.world) return ADDEND_REFUSAL_WORLD;
  if (header.length > job.slots.payload_bytes) return ADDEND_REFUSAL_LENGTH;
  if (!(job.workers[header.worker] == from)) return ADDEND_REFUSAL_SOURCE;
  if (job.packets_per_s > 0) {
    uint64_t& from_ns = part.allowed_from_ns[header.worker];
    if (from_ns > now_ns + kBurstNs) return ADDEND_REFUSAL_RATE;
    from_ns = std::max(from_ns, now_ns) + kSecondNs / job.packets_per_s;
  }
  return ADDEND_REFUSAL_NONE;
}

void DataPlane::take(std::span<const Arrival> arrivals, uint64_t now_ns) {
  std::array<auth::KeyedFrame, kTogether> frames;
  std::array<uint64_t, kTogether> tags;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& one = arrivals[i];
    frames[i] = {&one.part->job->worker_keys[one.header.worker], one.bytes};
  }
  auth::FrameKey::tag_all({frames.data(), arrivals.size()}, tags.data());
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& one = arrivals[i];
    // Takes the same time for every wrong one.
    if ((one.header.tag ^ tags[i]) != 0) {
      ++one.part->refused[ADDEND_REFUSAL_TAG];
      continue;
    }
    if (one.part->driver) one.part->driver->fetch(one.part->slots, one.header.slot);
    const aggregate::Outcome outcome =
        one.part->slots.handle(one.header, one.bytes.data() + ADDEND_FRAME_HEADER_BYTES,
                               static_cast<uint32_t>(one.bytes.size()), now_ns);
    if (outcome.refusal == ADDEND_REFUSAL_MISMATCH) tell_end(outcome.reply);
    reply(*one.part, one.header.worker, outcome.reply);
    if (share(*one.part)) one.part->driver->give(one.part->slots, one.header.slot);
  }
}

// The driver knows turns that all workers contribute to, and nothing of those that are absent, have
// left, or are to be told that it is over.
bool DataPlane::share(Part& part) {
  if (part.driver == nullptr) return false;
  const bool shared = !part.slots.ended() && part.left == 0 && part.slots.all_present();
  if (shared) {
    part.driver->release();
  } else {
    part.driver->fetch_all(part.slots);
  }
  return shared;
}

void DataPlane::recall(Part& part, uint64_t now_ns) {
  const uint64_t long_wait_ns = part.slots.long_wait_ns();
  if (!share(part) || long_wait_ns == 0) return;
  // A turn in the driver may come before one that is waited for here.
  bool waits_long = part.slots.waits_long(now_ns);
  if (now_ns >= part.driver_due_ns) {
    part.driver_due_ns = std::min(now_ns, part.driver->oldest_ns()) + long_wait_ns;
    waits_long = waits_long || part.driver_due_ns <= now_ns;
  }
  if (waits_long) part.driver->fetch_all(part.slots);
}

void DataPlane::tell_end(const aggregate::Reply& reply) {
  if (on_ended_) on_ended_(reply.header);
}

void DataPlane::expire(uint64_t now_ns) {
  for (auto& [epoch, part] : parts_) {
    aggregate::Reply reply;
    recall(part, now_ns);
    while (part.slots.expire(now_ns, reply)) {
      if (reply.header.kind == ADDEND_FRAME_NOTICE) tell_end(reply);
      reply_to_everyone(part, reply);
      share(part);  // if somebody is absent now, turns in the driver no longer wait for it
    }
    if (part.left == 0) continue;
    const uint64_t in_vain = part.left & part.slots.lacks();
    if (in_vain == 0) continue;
    part.slots.end(ADDEND_NOTICE_CLOSED, static_cast<uint32_t>(std::countr_zero(in_vain)), reply);
    tell_end(reply);
    reply_to_everyone(part, reply);
  }
}

void DataPlane::reply(Part& part, uint32_t sender, const aggregate::Reply& reply) {
  switch (reply.audience) {
    case aggregate::Audience::kNobody:
      return;
    case aggregate::Audience::kSender:
      return reply_to_one(part.job->result_key, part.job->workers[sender], reply);
    case aggregate::Audience::kEveryone:
      return reply_to_everyone(part, reply);
    case aggregate::Audience::kUpstream:
      return part.relay->add(reply);
  }
}

void DataPlane::receive_up(uint32_t epoch, std::span<const uint8_t> datagrams, uint32_t segment) {
  Part* part = find(epoch);
  if (part == nullptr || part->relay == nullptr) return;
  while (!datagrams.empty()) {
    const auto datagram = datagrams.first(std::min<std::size_t>(segment, datagrams.size()));
    datagrams = datagrams.subspan(datagram.size());
    ++status_.packets;
    status_.bytes += datagram.size();
    addend_frame_header header;
    if (const addend_refusal why = part->relay->check(datagram, header);
        why != ADDEND_REFUSAL_NONE) {
      ++part->refused[why];
      continue;
    }
    const aggregate::Outcome outcome =
        part->slots.take_result(header, datagram.data() + ADDEND_FRAME_HEADER_BYTES);
    reply(*part, 0, outcome.reply);
  }
}

std::vector<DataPlane::Uplink> DataPlane::uplinks() const {
  std::vector<Uplink> uplinks;
  for (const auto& [epoch, part] : parts_) {
    if (part.relay) uplinks.push_back({epoch, part.relay->upstream()->socket});
  }
  return uplinks;
}

// Results of equal length line up in one super-packet; another length or another job starts anew.
void DataPlane::reply_to_everyone(Part& part, const aggregate::Reply& reply) {
  const std::size_t bytes = ADDEND_FRAME_HEADER_BYTES + reply.payload.size();
  if (super_part_ != &part || bytes != super_segment_ || super_bytes_ + bytes > super_.size() ||
      super_bytes_ >= super_segment_ * net::kMaxSegments) {
    flush_super();
    super_part_ = &part;
    super_segment_ = bytes;
  }
  write_frame(reply, super_.data() + super_bytes_);
  super_bytes_ += bytes;
}

void DataPlane::reply_to_one(const auth::FrameKey& key, const net::Address& to,
                             const aggregate::Reply& reply) {
  const std::size_t bytes = ADDEND_FRAME_HEADER_BYTES + reply.payload.size();
  if (single_bytes_ + bytes > singles_.size()) flush();
  if (!(to == row_to_) || bytes != row_segment_) {
    flush_row();
    row_to_ = to;
    row_segment_ = bytes;
  }
  uint8_t* frame = singles_.data() + single_bytes_;
  write_frame(reply, frame);
  tag_frames(key, {frame, bytes}, bytes);
  single_bytes_ += bytes;
  ++status_.sent_packets;
  status_.sent_bytes += bytes;
}

void DataPlane::flush_row() {
  if (single_bytes_ == row_begin_) return;
  sink_.send(row_to_, {singles_.data() + row_begin_, single_bytes_ - row_begin_},
             static_cast<uint32_t>(row_segment_));
  row_begin_ = single_bytes_;
}

void DataPlane::flush_super() {
  if (super_bytes_ == 0) return;
  tag_frames(super_part_->job->result_key, {super_.data(), super_bytes_}, super_segment_);
  for (const net::Address& worker : super_part_->job->workers) {
    if (!worker.known()) continue;
    sink_.send(worker, {super_.data(), super_bytes_}, static_cast<uint32_t>(super_segment_));
    status_.sent_packets += super_bytes_ / super_segment_;
    status_.sent_bytes += super_bytes_;
  }
  super_bytes_ = 0;
  flush_singles();
}

// And whatever else the sink has.
void DataPlane::flush_singles() {
  flush_row();
  sink_.flush();
  single_bytes_ = row_begin_ = 0;
}

void DataPlane::flush() {
  flush_super();
  if (single_bytes_ > 0) flush_singles();
  super_part_ = nullptr;
  for (auto& [epoch, part] : parts_) {
    if (part.relay) flush_relay(part);
  }
}

void DataPlane::flush_relay(Part& part) {
  if (part.relay->flush() || part.slots.ended()) return;
  aggregate::Reply reply;
  const Upstream& upstream = *part.relay->upstream();
  part.slots.end(static_cast<addend_notice>(ADDEND_NOTICE_PATH | ADDEND_NOTICE_LEAF),
                 upstream.welcome.first_worker + upstream.leaf, reply);
  tell_end(reply);
  reply_to_everyone(part, reply);
  flush_super();
  super_part_ = nullptr;
}

DataPlaneStatus DataPlane::status(uint64_t now_ns) const {
  DataPlaneStatus status = status_;
  for (const auto& [epoch, part] : parts_) {
    EpochStatus one{epoch,
                    part.slots.counters(),
                    part.slots.ended(),
                    part.slots.notice_header(),
                    part.slots.memory_bytes(),
                    part.slots.first_wait()};
    if (part.driver) {
      const dataplane::DriverCounters driver = part.driver->counters();
      add_counters(one.counters, driver.counters);
      add_counters(status, driver);
      one.memory_bytes += part.driver->memory_bytes();
      one.wait.join(part.driver->first_wait(part.slots));
    }
    if (one.wait.opened_ns + kSecondNs > now_ns) one.wait.workers = 0;
    for (std::size_t i = 0; i < ADDEND_REFUSAL_COUNT; ++i)
      one.counters.refused[i] += part.refused[i];
    status.epochs.push_back(one);
  }
  return status;
}

}  // namespace addend::service
