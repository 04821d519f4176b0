// SPDX-License-Identifier: Apache-2.0
// Packet traces as text (docs/formats/protocol.md, "Traces"): what happened to an aggregator, and
// what it did. Reading, and writing what a given aggregator does.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "auth/frame_key.h"
#include "service/data_plane.h"
#include "service/status.h"
#include "tests/support/driver_wire.h"
#include "tests/support/frames.h"

namespace addend::testing_support {

using Datagram = std::vector<uint8_t>;

inline std::string hex(std::span<const uint8_t> bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

inline Datagram from_hex(const std::string& text) {
  Datagram bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// A frame as the traces write it: header, a space, payload.
inline std::string frame_text(std::span<const uint8_t> frame) {
  if (frame.size() <= ADDEND_FRAME_HEADER_BYTES) return hex(frame);
  return hex(frame.first(ADDEND_FRAME_HEADER_BYTES)) + " " +
         hex(frame.subspan(ADDEND_FRAME_HEADER_BYTES));
}

inline constexpr uint32_t kStranger = 255;  ///< a source that no worker registered

/// Something that happens to an aggregator.
struct Event {
  enum class Kind : uint8_t { kIn, kUp, kExpire, kEnd } kind = Kind::kIn;
  uint64_t at_ns = 0;
  uint32_t worker = 0;  ///< kIn: whose address it comes from; kEnd: whom the notice names
  Datagram frame;       ///< kIn, kUp: from the next aggregator
};

/// The next aggregator's epoch of a leaf's job.
struct UpstreamJob {
  uint32_t epoch = 0, boot = 0, leaf = 0, leaves = 1;
  Datagram secret{};
};

struct Trace {
  std::vector<std::string> comments;
  aggregate::SlotsOptions job;
  Datagram secret;
  std::map<uint32_t, aggregate::Table> tables;
  std::vector<Event> events;
  std::optional<UpstreamJob> upstream;  ///< of a leaf
};

/// The keys that a job's frames are tagged with.
struct TraceKeys {
  std::vector<auth::FrameKey> workers;
  auth::FrameKey result;
};
inline TraceKeys keys_of(const Datagram& job_secret, uint32_t world) {
  const auth::Secret secret(
      std::span<const uint8_t, auth::Secret::kBytes>(job_secret.data(), auth::Secret::kBytes));
  const auto key = [&](const char* purpose, uint32_t number) {
    return *auth::FrameKey::create(*auth::derive_secret(secret, purpose, number),
                                   ADDEND_FRAME_MAX_PAYLOAD_BYTES);
  };
  TraceKeys keys;
  for (uint32_t w = 0; w < world; ++w)
    keys.workers.push_back(key("worker", w));
  keys.result = key("result", 0);
  return keys;
}
inline TraceKeys keys_of(const Trace& trace) { return keys_of(trace.secret, trace.job.world); }

/// A header in the machine's byte order and a payload, as they travel.
inline Datagram tagged_frame(addend_frame_header header, std::span<const uint8_t> payload,
                             const auth::FrameKey& key) {
  addend_frame_swap(&header);
  header.tag = addend_be64(key.tag(header, payload));
  Datagram bytes(sizeof(header) + payload.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof(header), payload.data(), payload.size());
  return bytes;
}

/// What an aggregator did at an event.
struct Response {
  addend_refusal refusal = ADDEND_REFUSAL_NONE;
  struct Out {
    bool everyone = false;
    uint32_t worker = 0;
    Datagram frame;
    bool up = false;  // to the next aggregator
  };
  std::vector<Out> out;
};

/// An aggregator that plays a trace.
class TracePlayer {
 public:
  virtual ~TracePlayer() = default;
  virtual Response play(const Event& event) = 0;
  virtual aggregate::Counters counters() const = 0;
};

/// The whole data plane of `addend serve`: sources and tags are checked. With a driver, frames come
/// to its program first.
class PlanePlayer final : public TracePlayer, private service::FrameSink {
 public:
  explicit PlanePlayer(const Trace& trace, std::shared_ptr<dataplane::Driver> driver = nullptr,
                       const char* host = "10.0.0.1")
      : plane_(*this), epoch_(trace.job.epoch), world_(trace.job.world), host_(host) {
    TraceKeys keys = keys_of(trace);
    std::vector<net::Address> workers;
    for (uint32_t w = 0; w < trace.job.world; ++w)
      workers.push_back(address(w));
    auto job = std::make_shared<service::JobEpoch>(
        service::JobEpoch{trace.job, std::move(keys.workers), std::move(keys.result), workers, 0});
    if (trace.upstream) job->upstream = upstream_of(trace);
    std::unique_ptr<dataplane::DriverPart> part;
    if (driver) {
      wire_.emplace(driver, address(0), *net::resolve(host_[0] == '1' ? "10.0.0.2" : "fd00::2", 0));
      auto parts =
          driver->jobs().add({job->slots,
                              job->worker_keys,
                              &job->result_key,
                              job->workers,
                              0,
                              {{trace.job.first_slot, trace.job.slots, DriverWire::kServerPort}}});
      if (!parts.empty()) part = std::move(parts[0]);
    }
    plane_.add(job, *aggregate::Slots::create(trace.job), std::move(part));
    for (const auto& [number, table] : trace.tables)
      plane_.set_table(epoch_, number, table);
  }

  Response play(const Event& event) override {
    const auto before = refused();
    sent_.clear();
    up_.clear();
    switch (event.kind) {
      case Event::Kind::kIn:
        arrive(event);
        break;
      case Event::Kind::kUp:
        plane_.receive_up(epoch_, event.frame, 1u << 16);
        break;
      case Event::Kind::kExpire:
        plane_.expire(event.at_ns);
        break;
      case Event::Kind::kEnd:
        plane_.end(epoch_, ADDEND_NOTICE_CLOSED, event.worker);
        break;
    }
    plane_.flush();
    Response response;
    const auto after = refused();
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (after[i] != before[i]) response.refusal = static_cast<addend_refusal>(i);
    }
    collect(response);
    for (const Datagram& frame : up_)
      response.out.push_back({false, 0, frame, true});
    return response;
  }

  aggregate::Counters counters() const override {
    aggregate::Counters counters = plane_.status(0).epochs[0].counters;
    counters.refused = refused();
    return counters;
  }

  void set_table(uint32_t number, const aggregate::Table& table) {
    plane_.set_table(epoch_, number, table);
  }

  /// Frames that the driver's program did not leave to the server.
  uint64_t taken_by_driver() const { return taken_by_driver_; }
  /// What its program did that no program may do.
  const std::string& wrong() const { return wrong_; }

 private:
  net::Address address(uint32_t worker) const {
    return *net::resolve(host_, static_cast<uint16_t>(7000 + worker));
  }
  class UpSink final : public service::FrameSink {
   public:
    explicit UpSink(std::vector<Datagram>& frames) : frames_(frames) {}
    void send(const net::Address&, std::span<const uint8_t> bytes, uint32_t segment) override {
      for (std::size_t at = 0; at < bytes.size(); at += segment) {
        const auto frame = bytes.subspan(at, std::min<std::size_t>(segment, bytes.size() - at));
        frames_.emplace_back(frame.begin(), frame.end());
      }
    }
    void flush() override {}

   private:
    std::vector<Datagram>& frames_;
  };
  std::shared_ptr<service::Upstream> upstream_of(const Trace& trace) {
    const UpstreamJob& from = *trace.upstream;
    TraceKeys keys = keys_of(from.secret, from.leaves);
    auto upstream = std::make_shared<service::Upstream>();
    upstream->welcome.epoch = from.epoch;
    upstream->welcome.boot = from.boot;
    upstream->welcome.slots = trace.job.slots;
    upstream->welcome.payload_bytes = trace.job.payload_bytes;
    upstream->leaf = from.leaf;
    upstream->leaves = from.leaves;
    upstream->worker_key = std::move(keys.workers[from.leaf]);
    upstream->result_key = std::move(keys.result);
    upstream->threads = {address(1000)};
    upstream->sink = std::make_unique<UpSink>(up_);
    return upstream;
  }
  void arrive(const Event& event) {
    using Kind = DriverWire::Outcome::Kind;
    const auto port = static_cast<uint16_t>(7000 + event.worker);
    auto outcome = wire_ ? wire_->send(port, event.frame, event.at_ns)
                         : DriverWire::Outcome{Kind::kPassed, {}, ""};
    if (outcome.kind == Kind::kPassed) {
      return plane_.receive(address(event.worker), event.frame, 1u << 16, event.at_ns);
    }
    ++taken_by_driver_;
    wrong_ += outcome.what;
    if (outcome.kind == Kind::kToSender) sent_[event.worker].push_back(outcome.frame);
    for (uint32_t w = 0; w < world_ && outcome.kind == Kind::kToAll; ++w)
      sent_[w].push_back(outcome.frame);
  }
  void send(const net::Address& to, std::span<const uint8_t> bytes, uint32_t segment) override {
    for (std::size_t at = 0; at < bytes.size(); at += segment) {
      const auto frame = bytes.subspan(at, segment);
      sent_[static_cast<uint32_t>(to.port() - 7000)].emplace_back(frame.begin(), frame.end());
    }
  }
  void flush() override {}

  std::array<uint64_t, ADDEND_REFUSAL_COUNT> refused() const {
    const service::DataPlaneStatus status = plane_.status(0);
    auto all = status.refused;
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] += status.epochs[0].counters.refused[i];
    return all;
  }
  // Frames that all workers got are one reply to everyone.
  void collect(Response& response) const {
    if (sent_.empty()) return;
    const std::vector<Datagram>& first = sent_.begin()->second;
    bool everyone = sent_.size() == world_;
    for (const auto& [worker, frames] : sent_)
      everyone = everyone && frames == first;
    for (const auto& [worker, frames] : sent_) {
      for (const Datagram& frame : frames)
        response.out.push_back({everyone, worker, frame});
      if (everyone) return;
    }
  }

  service::DataPlane plane_;
  uint32_t epoch_, world_;
  std::string host_;
  std::optional<DriverWire> wire_;
  uint64_t taken_by_driver_ = 0;
  std::string wrong_;
  std::map<uint32_t, std::vector<Datagram>> sent_;
  std::vector<Datagram> up_;  // to the next aggregator
};

/// The state machine alone, for frames whose source and tag were found right by others.
class SlotsPlayer final : public TracePlayer {
 public:
  explicit SlotsPlayer(const Trace& trace)
      : slots_(*aggregate::Slots::create(trace.job)), result_key_(keys_of(trace).result) {
    for (const auto& [number, table] : trace.tables)
      slots_.set_table(number, table);
    if (trace.upstream) upstream_ = *trace.upstream;
  }

  /// REQUIRES: a frame has a header at least.
  Response play(const Event& event) override {
    Response response;
    aggregate::Reply reply;
    switch (event.kind) {
      case Event::Kind::kIn: {
        addend_frame_header header;
        std::memcpy(&header, event.frame.data(), sizeof(header));
        addend_frame_swap(&header);
        const aggregate::Outcome outcome =
            slots_.handle(header, event.frame.data() + sizeof(header),
                          static_cast<uint32_t>(event.frame.size()), event.at_ns);
        response.refusal = outcome.refusal;
        add(response, event.worker, outcome.reply);
        break;
      }
      case Event::Kind::kUp: {
        const addend_frame_header header = addend_frame_read(event.frame.data());
        const aggregate::Outcome outcome =
            slots_.take_result(header, event.frame.data() + sizeof(header));
        response.refusal = outcome.refusal;
        add(response, 0, outcome.reply);
        break;
      }
      case Event::Kind::kExpire:
        while (slots_.expire(event.at_ns, reply))
          add(response, 0, reply);
        break;
      case Event::Kind::kEnd:
        slots_.end(ADDEND_NOTICE_CLOSED, event.worker, reply);
        add(response, 0, reply);
    }
    return response;
  }

  aggregate::Counters counters() const override { return slots_.counters(); }

 private:
  void add(Response& response, uint32_t sender, const aggregate::Reply& reply) {
    if (reply.audience == aggregate::Audience::kNobody) return;
    if (reply.audience == aggregate::Audience::kUpstream) {
      addend_frame_header header = reply.header;
      header.epoch = upstream_.epoch;
      header.boot = upstream_.boot;
      header.worker = static_cast<uint8_t>(upstream_.leaf);
      header.world = static_cast<uint8_t>(upstream_.leaves);
      header.contributors = uint64_t{1} << upstream_.leaf;
      const TraceKeys keys = keys_of(upstream_.secret, upstream_.leaves);
      response.out.push_back(
          {false, 0, tagged_frame(header, reply.payload, keys.workers[upstream_.leaf]), true});
      return;
    }
    response.out.push_back({reply.audience == aggregate::Audience::kEveryone, sender,
                            tagged_frame(reply.header, reply.payload, result_key_), false});
  }

  aggregate::Slots slots_;
  auth::FrameKey result_key_;
  UpstreamJob upstream_;
};

inline std::string response_text(const Response& response) {
  std::string text;
  if (response.refusal != ADDEND_REFUSAL_NONE)
    text += std::string("  refused ") + service::refusal_name(response.refusal) + "\n";
  for (const Response::Out& out : response.out)
    text += "  out " +
            (out.up         ? "up"
             : out.everyone ? "all"
                            : std::to_string(out.worker)) +
            " " + frame_text(out.frame) + "\n";
  return text;
}

inline std::string event_text(const Event& event) {
  const std::string at = "at " + std::to_string(event.at_ns) + " ";
  switch (event.kind) {
    case Event::Kind::kIn:
      return at + "in " +
             (event.worker == kStranger ? std::string("stranger") : std::to_string(event.worker)) +
             " " + frame_text(event.frame) + "\n";
    case Event::Kind::kUp:
      return at + "up " + frame_text(event.frame) + "\n";
    case Event::Kind::kExpire:
      return at + "expire\n";
    case Event::Kind::kEnd:
      return at + "end closed " + std::to_string(event.worker) + "\n";
  }
  return "";
}

inline std::string job_text(const Trace& trace) {
  std::ostringstream out;
  for (const std::string& comment : trace.comments)
    out << "# " << comment << "\n";
  const aggregate::SlotsOptions& job = trace.job;
  out << "job epoch " << job.epoch << " boot " << job.boot << " world " << job.world
      << " first_slot " << job.first_slot << " slots " << job.slots << " payload "
      << job.payload_bytes << " ops " << job.ops << " patience_ns " << job.patience_ns << " quorum "
      << job.quorum << "\nsecret " << hex(trace.secret) << "\n";
  if (trace.upstream) {
    out << "upstream epoch " << trace.upstream->epoch << " boot " << trace.upstream->boot
        << " leaf " << trace.upstream->leaf << " leaves " << trace.upstream->leaves << " secret "
        << hex(trace.upstream->secret) << "\n";
  }
  for (const auto& [number, table] : trace.tables) {
    out << "table " << number;
    for (const uint16_t entry : table)
      out << " " << entry;
    out << "\n";
  }
  return out.str();
}

inline std::string counters_text(const aggregate::Counters& counters) {
  std::ostringstream out;
  out << "counted folded " << counters.folded << " complete " << counters.complete << " partial "
      << counters.partial << " answered " << counters.answered << " resent " << counters.resent;
  for (std::size_t i = 0; i < counters.refused.size(); ++i) {
    if (counters.refused[i] != 0)
      out << " " << service::refusal_name(static_cast<addend_refusal>(i)) << " "
          << counters.refused[i];
  }
  return out.str() + "\n";
}

/// Reads job and events; expectations are for whoever compares. Nothing if the text is no trace.
inline std::optional<Trace> parse_trace(const std::string& text) {
  Trace trace;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "#") {
      trace.comments.push_back(line.substr(2));
    } else if (word == "job") {
      aggregate::SlotsOptions& job = trace.job;
      words >> word >> job.epoch >> word >> job.boot >> word >> job.world >> word >>
          job.first_slot >> word >> job.slots >> word >> job.payload_bytes >> word >> job.ops >>
          word >> job.patience_ns >> word >> job.quorum;
    } else if (word == "secret") {
      words >> word;
      trace.secret = from_hex(word);
    } else if (word == "upstream") {
      UpstreamJob& up = trace.upstream.emplace();
      trace.job.relays = true;
      words >> word >> up.epoch >> word >> up.boot >> word >> up.leaf >> word >> up.leaves >> word;
      words >> word;
      up.secret = from_hex(word);
    } else if (word == "table") {
      uint32_t number = 0;
      words >> number;
      for (uint16_t& entry : trace.tables[number])
        words >> entry;
    } else if (word == "at") {
      Event event;
      words >> event.at_ns >> word;
      event.kind = word == "in"       ? Event::Kind::kIn
                   : word == "up"     ? Event::Kind::kUp
                   : word == "expire" ? Event::Kind::kExpire
                                      : Event::Kind::kEnd;
      if (event.kind == Event::Kind::kEnd) words >> word >> event.worker;
      if (event.kind == Event::Kind::kIn) {
        words >> word;
        event.worker = word == "stranger" ? kStranger : static_cast<uint32_t>(std::stoul(word));
      }
      if (event.kind == Event::Kind::kIn || event.kind == Event::Kind::kUp) {
        for (std::string part; words >> part;) {
          const Datagram bytes = from_hex(part);
          event.frame.insert(event.frame.end(), bytes.begin(), bytes.end());
        }
      }
      trace.events.push_back(std::move(event));
    } else if (word != "refused" && word != "out" && word != "counted" && !word.empty()) {
      return std::nullopt;
    }
    if (words.fail() && !words.eof()) return std::nullopt;
  }
  if (trace.secret.size() != auth::Secret::kBytes) return std::nullopt;
  return trace;
}

}  // namespace addend::testing_support
