// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/session.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include <openssl/crypto.h>
#include <poll.h>

#include "reduce/service/path_probe.h"
#include "wire/frame.h"

namespace addend::service_client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kReconnectPause{50};
// How long a server may take to read a message of somebody who may stop.
constexpr std::chrono::seconds kUnread{10};
// How often somebody who may stop joining is asked.
constexpr std::chrono::milliseconds kLookAgain{100};

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

addend_control_join join_message(const ServiceReducerOptions& options, uint16_t udp_port,
                                 std::size_t positions) {
  addend_control_join join{};
  net::put_text(join.job.name, options.job);
  join.job.world = options.world;
  join.job.slots = options.slots;
  join.job.payload_bytes = options.payload_bytes;
  join.job.quorum = options.quorum;
  join.job.patience_ns = static_cast<uint64_t>(options.patience.count());
  join.job.flags = ADDEND_CONTROL_FLOATS;
  join.worker = options.worker;
  join.udp_port = udp_port;
  join.positions = static_cast<uint32_t>(positions);
  return join;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::join(const ServiceReducerOptions& options,
                                               const net::UdpSocket& socket,
                                               std::span<const uint32_t> positions,
                                               Deadline deadline, const std::atomic<bool>* stop) {
  bool was_in = false;
  while (true) {
    std::unique_ptr<Session> session(new Session);
    const Status status = session->enter(options, socket, positions, deadline, stop);
    if (status) return session;
    was_in = was_in || session->was_in_;
    // A server that has let us in, and then went without a word, restarts.
    const bool lost = session->control_ == nullptr || session->control_->is_lost();
    const bool stopped = stop != nullptr && *stop;
    if (!was_in || !lost || stopped || Clock::now() >= deadline) return status.error();
    std::this_thread::sleep_for(kReconnectPause);
  }
}

Status Session::enter(const ServiceReducerOptions& options, const net::UdpSocket& socket,
                      std::span<const uint32_t> positions, Deadline deadline,
                      const std::atomic<bool>* stop) {
  const auto server = net::resolve(options.access.aggregator);
  if (!server) return server.error();
  const auto soon = [&] { return stop ? std::min(deadline, Clock::now() + kLookAgain) : deadline; };
  const auto stopped = [&] { return stop != nullptr && *stop; };
  const Error over = make_error(Errc::kUnavailable, "joining was given up");
  auto control = auth::ControlClient::connect_when_up(options.access, deadline, stop);
  if (!control) return control.error();
  control_ = *std::move(control);
  const addend_control_join join = join_message(options, socket.port(), positions.size());
  const auto read_by = stop ? std::min(deadline, Clock::now() + kUnread) : deadline;
  ADDEND_TRY(control_->send(ADDEND_CONTROL_JOIN, join, positions, read_by));
  while (true) {
    const auto message = control_->receive(soon());
    if (stopped()) return over;
    if (!message) {
      if (message.error().code != Errc::kTimeout) return message.error();
      if (Clock::now() < deadline) continue;
      return make_error(Errc::kTimeout, "not all workers of job " + options.job + " came in time");
    }
    // Messages that were under way when we joined: the end of an epoch before ours is no news.
    if (message->type == ADDEND_CONTROL_ENDED) continue;
    if (message->type != ADDEND_CONTROL_PROBE) return take_welcome(*message, *server);
    was_in_ = true;
    const auto probe = message->as<addend_control_probe>();
    const uint32_t most = positions.empty() ? probe.payload_bytes : options.payload_bytes;
    ADDEND_TRY(probe_path(options, socket, probe, most, deadline));
  }
}

Status Session::probe_path(const ServiceReducerOptions& options, const net::UdpSocket& socket,
                           const addend_control_probe& message, uint32_t most, Deadline deadline) {
  const auto server = net::resolve(options.access.aggregator);
  if (!server) return server.error();
  auto probe = PathProbe::create(message, options.worker, options.world, most);
  if (!probe) return probe.error();
  net::Outbox outbox(socket);
  net::Inbox inbox;
  while (!probe->done(now_ns())) {
    for (const PathProbe::One& one : probe->collect(now_ns())) {
      const auto frame = probe->frame(one);
      net::Address to = *server;
      to.set_port(message.port[one.thread]);
      outbox.add(to, frame, static_cast<uint32_t>(frame.size()));
      outbox.flush();
      if (outbox.take_too_long()) probe->too_long(one.payload_bytes);
    }
    const uint64_t now = now_ns();
    const uint64_t left = probe->next_ns() > now ? probe->next_ns() - now : 0;
    const timespec pause{static_cast<time_t>(left / 1'000'000'000),
                         static_cast<long>(left % 1'000'000'000)};
    pollfd ready{socket.fd(), POLLIN, 0};
    ppoll(&ready, 1, &pause, nullptr);
    for (const net::Inbox::Datagrams& from : inbox.receive(socket)) {
      for (std::size_t at = 0; at < from.bytes.size(); at += from.segment)
        probe->receive(
            from.bytes.subspan(at, std::min<std::size_t>(from.segment, from.bytes.size() - at)),
            now_ns());
    }
  }
  round_trip_ns_ = probe->round_trip_ns();
  const addend_control_path path{probe->payload_bytes(), 0};
  return control_->send(ADDEND_CONTROL_PATH, path, {}, deadline);
}

Status Session::take_welcome(const net::ControlMessage& message, const net::Address& server) {
  if (message.type != ADDEND_CONTROL_WELCOME) {
    return make_error(Errc::kMalformed, "the server answered something else than a welcome");
  }
  welcome_ = message.as<addend_control_welcome>();
  positions_ = message.numbers();
  const bool good = welcome_.slots > 0 && welcome_.slots <= ADDEND_CONTROL_MAX_SLOTS &&
                    welcome_.payload_bytes > 0 && welcome_.payload_bytes % 8 == 0 &&
                    welcome_.payload_bytes <= ADDEND_FRAME_MAX_PAYLOAD_BYTES &&
                    welcome_.threads > 0 && welcome_.threads <= ADDEND_CONTROL_MAX_THREADS &&
                    welcome_.world > 0 && welcome_.world <= ADDEND_MAX_JOB_WORKERS &&
                    (positions_.empty() || positions_.size() == welcome_.slots);
  if (!good) return make_error(Errc::kMalformed, "the server's welcome contradicts itself");
  for (uint32_t t = 0; t < welcome_.threads; ++t) {
    net::Address address = server;
    address.set_port(welcome_.port[t]);
    aggregators_.push_back(address);
  }
  const auto key_from = [&](uint8_t(&bytes)[ADDEND_CONTROL_KEY_BYTES]) {
    auto key = auth::FrameKey::create(auth::Secret(bytes), welcome_.payload_bytes);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    return key;
  };
  auto worker_key = key_from(welcome_.worker_secret);
  if (!worker_key) return worker_key.error();
  auto result_key = key_from(welcome_.result_secret);
  if (!result_key) return result_key.error();
  worker_key_ = *std::move(worker_key);
  result_key_ = *std::move(result_key);
  return {};
}

Error Session::error_of(const addend_control_ended& ended) const {
  std::string who = "the server";
  if ((ended.notice & ADDEND_NOTICE_LEAF) != 0) {
    who = "leaf " + std::to_string(ended.worker);
  } else if (ended.worker != ADDEND_FRAME_EVERYONE) {
    who = "worker " + std::to_string(welcome_.first_worker + ended.worker);
  }
  switch (ended.notice & ~uint32_t{ADDEND_NOTICE_LEAF}) {
    case ADDEND_NOTICE_TIMEOUT:
      return make_error(Errc::kTimeout, who + " did not contribute in time");
    case ADDEND_NOTICE_MISMATCH:
      return make_error(Errc::kMismatch, who + " brought planes of another shape");
    case ADDEND_NOTICE_PATH:
      return make_error(Errc::kUnavailable, "the path from the server to " + who +
                                                " no longer carries the job's datagrams: its MTU "
                                                "has shrunk; join anew");
    default:
      return make_error(Errc::kUnavailable, who + " left the job");
  }
}

Result<net::ControlMessage> Session::expect(addend_control_type type, Deadline deadline) {
  while (true) {
    auto message = control_->receive(deadline);
    if (!message || message->type == type) return message;
    if (message->type != ADDEND_CONTROL_ENDED) {
      return make_error(Errc::kMalformed, "the server answered something else");
    }
    pending_end_ = message->as<addend_control_ended>();
    return error_of(*pending_end_);
  }
}

Result<uint32_t> Session::table(const Table& table, Deadline deadline) {
  const auto known = std::find(tables_.begin(), tables_.end(), table);
  if (known != tables_.end())
    return table_numbers_[static_cast<std::size_t>(known - tables_.begin())];
  addend_control_table message{};
  std::copy(table.begin(), table.end(), message.entries);
  ADDEND_TRY(control_->send(ADDEND_CONTROL_TABLE, message, {}, deadline));
  const auto answer = expect(ADDEND_CONTROL_TABLE_IS, deadline);
  if (!answer) return answer.error();
  tables_.push_back(table);
  table_numbers_.push_back(answer->as<addend_control_number>().number);
  return table_numbers_.back();
}

Session::News Session::news() {
  if (!pending_end_) {
    const auto message = control_->receive(std::chrono::steady_clock::now());
    if (!message) return message.error().code == Errc::kTimeout ? News::kNone : News::kGone;
    if (message->type != ADDEND_CONTROL_ENDED) return News::kNone;
    pending_end_ = message->as<addend_control_ended>();
  }
  ended_ = *pending_end_;
  return News::kEnded;
}

void Session::leave() {
  const Status sent = control_->send(
      ADDEND_CONTROL_LEAVE, std::chrono::steady_clock::now() + std::chrono::milliseconds(500));
  (void)sent;  // a server that is gone needs no goodbye
}

Status check_operations(uint32_t before, uint32_t now) {
  constexpr uint32_t kFloats = 1u << ADDEND_OP_SUM_F32;
  if ((before & ~now & kFloats) != 0) {
    return make_error(Errc::kMismatch,
                      "the job may not sum floats any more; all workers must join anew");
  }
  // Rounds that some workers have begun look otherwise on those that begin them now.
  if ((now & ~before & kFloats) != 0) {
    return make_error(Errc::kMismatch, "the job may sum floats now; all workers must join anew");
  }
  constexpr uint32_t kKnown = (1u << ADDEND_OP_COUNT) - 1;  // a newer server may have others
  const uint32_t lost = before & ~now & kKnown;
  if (lost == 0) return {};
  return make_error(Errc::kMismatch, std::string("the job does not allow ") +
                                         op_name(static_cast<Op>(std::countr_zero(lost))) +
                                         " any more; all workers must join anew");
}

}  // namespace addend::service_client
