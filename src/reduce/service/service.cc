// SPDX-License-Identifier: Apache-2.0
// The reducer of a worker whose planes are summed by an aggregation server.
//
//   joined --- the control connection is gone -------------------------------> rejoining
//    |   ^                                                                     |     |
//    |   '--- the server is back and all workers have said how far they are ---'     |
//    |                                                                               |
//    |  any other error: a notice, the deadline, left behind ...     not in time, or another job
//    v                                                                               |
//   broken: every later round fails with the same reason <---------------------------'
//
// How far they are: without a quorum they say it as they join, and send again what some of them
// lack; with one they say it then, in rounds (outcomes.cc), and a stream begins anew.
// `changed` leaves a reducer joined: the step begins again, with the workers that are there.
#include "reduce/service/service.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>

#include <poll.h>
#include <sys/eventfd.h>

#include "base/bits.h"
#include "net/descriptor.h"
#include "net/udp_socket.h"
#include "reduce/claims.h"
#include "reduce/host_memory.h"
#include "reduce/service/chunks.h"
#include "reduce/service/forecast.h"
#include "reduce/service/outcomes.h"
#include "reduce/service/session.h"
#include "reduce/service/shared_exponent.h"
#include "reduce/service/stream.h"

namespace addend::service_client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kSocketBuffer = 8u << 20;
// Between tries to join again, doubled each time: a server that refuses a worker has to do a
// handshake for each.
constexpr std::chrono::milliseconds kReconnectPause{50}, kMostReconnectPause{1000};
// Between questions to a worker that is absent: the aggregator keeps the last answers only.
constexpr std::chrono::milliseconds kAskAgainPause{250};

uint64_t to_ns(Clock::time_point time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

class ServiceReducer final : public Reducer, private Epochs {
 public:
  static Result<std::unique_ptr<Reducer>> create(const ServiceReducerOptions& options) {
    auto any = net::resolve("", 0);
    if (!any) return any.error();
    auto socket = net::UdpSocket::bind(*any, kSocketBuffer);
    if (!socket) return socket.error();
    auto session = Session::join(options, *socket, {}, Clock::now() + options.join_timeout);
    if (!session) return session.error();
    net::Descriptor interruption(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!interruption) return net::io_error("eventfd");
    std::unique_ptr<ServiceReducer> reducer(new ServiceReducer(
        options, *std::move(socket), *std::move(session), std::move(interruption)));
    ADDEND_TRY(reducer->stream_.enter(reducer->view()));
    // A leaf knows the number of its own workers only, and other numbers of all can give the same.
    if (reducer->session_->welcome().world != options.world) {
      const Claim all[] = {{"the number of workers", options.world}};
      ADDEND_TRY(reducer->agree(all, Clock::now() + options.join_timeout));
    }
    return std::unique_ptr<Reducer>(std::move(reducer));
  }
  ~ServiceReducer() override {
    // A worker that failed by itself drops the connection: that ends the step for the others too.
    if (session_ && (broken_.empty() || ended_)) session_->leave();
  }

  uint32_t world() const override { return options_.world; }
  uint32_t worker() const override { return options_.worker; }
  double float_error() const override {
    return !session_ || allows(Op::kSumF32) ? 0 : quantum_error(options_.world);
  }

  Status reduce(Round& round, Deadline deadline) override {
    ADDEND_TRY(check_usable());
    ADDEND_TRY(check_host_memory(round));
    bool as_integers = false;
    for (const Plane& plane : round) {
      if (allows(plane.op)) continue;
      if (!is_float_sum(plane.op)) {
        return make_error(Errc::kInvalidArgument,
                          std::string("this job does not allow ") + op_name(plane.op));
      }
      as_integers = true;
    }
    return note(as_integers ? run_as_integers(round, deadline) : run(round, deadline));
  }

  // Planes that all workers expect to be of this shape do not wait for the claims
  // (docs/decisions/0061-claims-over-a-server.md).
  Status reduce_step(std::span<const Claim> claims, Round& round, Deadline deadline) override {
    ADDEND_TRY(check_usable());
    const uint64_t shape = shape_of(round);
    const bool at_once =
        forecast_.expects(shape) && may_follow(round) && claims.size() <= kMaxClaims;
    ADDEND_TRY(at_once ? note(run_step(claims, round, deadline))
                       : Reducer::reduce_step(claims, round, deadline));
    forecast_.add(shape);
    return {};
  }

  void begin_step() override { outcomes_.begin_step(); }
  uint32_t quorum() const override { return quorum_; }
  uint64_t missing() const override { return outcomes_.missing(); }
  void interrupt() override {
    interrupted_ = true;
    eventfd_write(interruption_.get(), 1);
  }

 private:
  ServiceReducer(const ServiceReducerOptions& options, net::UdpSocket socket,
                 std::unique_ptr<Session> session, net::Descriptor interruption)
      : options_(options),
        interruption_(std::move(interruption)),
        socket_(std::move(socket)),
        outbox_(socket_),
        session_(std::move(session)),
        payload_bytes_(session_->welcome().payload_bytes),
        quorum_(session_->welcome().quorum),
        was_by_switch_(by_switch()),
        was_by_leaf_(by_leaf()),
        ops_(session_->welcome().ops),
        stream_(session_->welcome().slots, payload_bytes_),
        outcomes_(options.world, options.worker) {
    // Joining again is for what the stream is made for; and a server that has forgotten the job
    // makes the same one.
    options_.payload_bytes = payload_bytes_;
    options_.slots = session_->welcome().slots;
    options_.quorum = quorum_;
    options_.patience = std::chrono::nanoseconds(session_->welcome().patience_ns);
  }

  EpochView view() const {
    const addend_control_welcome& welcome = session_->welcome();
    return {welcome.epoch,
            welcome.boot,
            own_number(),
            welcome.world,
            &session_->worker_key(),
            &session_->result_key(),
            session_->positions(),
            welcome.threads,
            session_->round_trip_ns(),
            by_switch()};
  }

  // In frames: of the server's workers, which are some of the job's if it is a leaf of a tree.
  uint32_t own_number() const { return options_.worker - session_->welcome().first_worker; }

  bool by_switch() const { return (session_->welcome().flags & ADDEND_CONTROL_SWITCH) != 0; }

  bool allows(Op op) const {
    return (session_->welcome().ops >> static_cast<uint32_t>(op) & 1) != 0;
  }

  bool by_leaf() const { return (session_->welcome().flags & ADDEND_CONTROL_LEAF) != 0; }

  FrameLimits frame_limits() const { return {payload_bytes_, was_by_leaf_}; }

  // What an aggregator does with lanes that are not there would not be a plane's sums.
  Status check_narrow(const Plane& plane) const {
    if (!is_narrow_sum(plane.op)) return {};
    const auto refuse = [&](const std::string& why) {
      return make_error(Errc::kUnsupported, std::string(op_name(plane.op)) + " " + why);
    };
    if (plane.lanes % 8 != 0)
      return refuse("of " + std::to_string(plane.lanes) +
                    " lanes: an aggregation server adds whole bytes of indices, so 8 lanes");
    if (lanes_per_chunk(plane.op, frame_limits()) == 0)
      return refuse("comes back in groups of 512 lanes, and datagrams of this job carry only " +
                    std::to_string(payload_bytes_) + " bytes");
    return {};
  }

  // The job does not allow floats.
  Status run_as_integers(Round& round, Deadline deadline) {
    Round integers;
    // First the largest exponent of each block over all workers, then multiples of one quantum.
    ADDEND_TRY(integer_rounds_.begin(round, options_.world, integers));
    ADDEND_TRY(run(integers, deadline));
    ADDEND_TRY(integer_rounds_.quantise(integers, (missing() >> own_number() & 1) != 0));
    ADDEND_TRY(run(integers, deadline));
    integer_rounds_.finish();
    return {};
  }

  // A group is of no use after an error, but for a step that begins again.
  Status note(Status status) {
    if (!status && status.error().code != Errc::kChanged) return broken_by(status.error());
    return status;
  }

  // Whether a round can be under way together with the claims of its step. With a quorum the claims
  // decide who is in it, and one frame is decided once. They must come in one frame: as soon as
  // that is here, they are compared.
  bool may_follow(const Round& round) const {
    return quorum_ == 0 && lanes_per_chunk(Op::kMaxU32, frame_limits()) >= ClaimLanes::kLanes &&
           round.size < Round::kMaxPlanes && check_host_memory(round) &&
           std::all_of(round.begin(), round.end(), [&](const Plane& p) { return allows(p.op); });
  }

  Status run_step(std::span<const Claim> claims, const Round& round, Deadline deadline) {
    ClaimLanes lanes(claims);
    Round both;
    both.add(lanes.plane());
    for (const Plane& plane : round)
      both.add(plane);
    begin_step();
    return run(both, deadline, &lanes);
  }

  // `claims`: those of the first plane. With a quorum there are none.
  Status run(Round& round, Deadline deadline, const ClaimLanes* claims = nullptr) {
    if (ended_) return session_->error_of(*ended_);
    if (round.bytes() == 0) return {};
    if (quorum_ > 0) return outcomes_.run(round, *this, deadline);
    const auto absence = exchange(round, outcomes_.flags(), deadline, claims);
    return absence ? outcomes_.take(**absence) : Status(absence.error());
  }

  Result<std::optional<Absence>> fold(Round& round, uint8_t flags, Deadline deadline) override {
    return exchange(round, flags, deadline, nullptr);
  }

  // Nothing if the server is gone, which happens here with a quorum only. `claims`: those of the
  // first plane, a chunk of its own. A worker that brings others may never send the planes behind
  // them.
  Result<std::optional<Absence>> exchange(Round& round, uint8_t flags, Deadline deadline,
                                          const ClaimLanes* claims) {
    std::array<uint32_t, Round::kMaxPlanes> tables{};
    for (std::size_t p = 0; p < round.size; ++p) {
      ADDEND_TRY(check_narrow(round.planes[p]));
      if (op_table_bytes(round.planes[p].op) == 0) continue;
      auto table = table_of(round.planes[p], deadline);
      if (gone_) return std::optional<Absence>();
      if (!table) return table.error();
      tables[p] = *table;
    }
    const Chunks chunks(round, frame_limits());
    const uint64_t first = stream_.extend(chunks.size());
    absence_ = {};
    first_came_ = false;
    const bool behind_claims = claims != nullptr;
    while (!stream_.complete()) {
      for (uint64_t number = 0; stream_.next(number);) {
        const Chunk chunk = chunks.at(number - first);
        const auto plane = static_cast<std::size_t>(chunk.plane - round.planes.data());
        // Planes behind claims look as they would in a round of their own.
        const bool entry = flags != 0 && (plane == 0 || !behind_claims);
        stream_.add(number, {chunk.plane->op, chunk.contribution(), tables[plane], entry});
      }
      ADDEND_TRY(send());
      ADDEND_TRY(wait(deadline));
      if (gone_) return std::optional<Absence>();
      ADDEND_TRY(receive(chunks, first));
      if (claims != nullptr && first_came_) {
        ADDEND_TRY(claims->check(*this));
        claims = nullptr;
      }
      if (ended_ && !stream_.complete()) return session_->error_of(*ended_);
    }
    return std::optional<Absence>(absence_);
  }

  // Runs of equal frames to one port go as one super-packet, whose last frame may be shorter.
  Status send() {
    const auto frames = stream_.collect(to_ns(Clock::now()));
    for (std::size_t i = 0; i < frames.size();) {
      const net::Address& to = session_->aggregator(frames[i].slot);
      pieces_.clear();
      const std::size_t segment = frames[i].bytes.size();
      for (; i < frames.size() && pieces_.size() < net::kMaxSegments; ++i) {
        if (!(session_->aggregator(frames[i].slot) == to) || frames[i].bytes.size() > segment)
          break;
        if ((pieces_.size() + 1) * segment > net::kMaxSuperBytes) break;
        pieces_.push_back(frames[i].bytes);
        if (frames[i].bytes.size() < segment) {
          ++i;
          break;
        }
      }
      outbox_.add(to, pieces_, static_cast<uint32_t>(segment));
    }
    outbox_.flush();
    const auto too_far = outbox_.take_too_long();
    if (!too_far) return {};
    return make_error(Errc::kUnavailable,
                      "the path to the aggregator at " + too_far->to_string() +
                          " no longer carries datagrams of " +
                          std::to_string(ADDEND_FRAME_HEADER_BYTES + payload_bytes_) +
                          " bytes: its MTU has shrunk; join anew");
  }

  // The end of the epoch is no error yet: sums that were sent before it may have come, too.
  Status wait(Deadline deadline) {
    const auto now = Clock::now();
    if (now >= deadline) {
      return make_error(Errc::kTimeout, "the deadline passed while waiting for the aggregator at " +
                                            options_.access.aggregator + " or other workers");
    }
    const uint64_t until = std::min(to_ns(deadline), stream_.next_timeout_ns());
    const uint64_t left = until > to_ns(now) ? until - to_ns(now) : 0;
    const timespec pause{static_cast<time_t>(left / 1'000'000'000),
                         static_cast<long>(left % 1'000'000'000)};
    pollfd ready[] = {
        {socket_.fd(), POLLIN, 0}, {session_->fd(), POLLIN, 0}, {interruption_.get(), POLLIN, 0}};
    ppoll(ready, std::size(ready), &pause, nullptr);
    if (ready[2].revents != 0) return interrupted();
    if (ready[1].revents == 0) return {};
    switch (session_->news()) {
      case Session::News::kNone:
        return {};
      case Session::News::kEnded:
        ended_ = session_->ended();
        return {};
      case Session::News::kGone:
        return server_gone(deadline);
    }
    return {};
  }

  // With a quorum the call has to know: sums that are on their way are of a memory that is lost.
  Status server_gone(Deadline deadline) {
    gone_ = quorum_ > 0;
    if (gone_) return {};
    const auto back = rejoin(deadline);
    return back ? Status() : Status(back.error());
  }

  static Error interrupted() {
    return make_error(Errc::kUnavailable, "the rounds under way were interrupted");
  }

  // What is there; when the epoch is over, all of it, for nothing comes after that.
  Status receive(const Chunks& chunks, uint64_t first) {
    auto batch = inbox_.receive(socket_);
    ADDEND_TRY(take(batch, chunks, first));
    while (ended_ && !batch.empty() && !stream_.complete()) {
      batch = inbox_.receive(socket_);
      ADDEND_TRY(take(batch, chunks, first));
    }
    return {};
  }

  Status take(std::span<const net::Inbox::Datagrams> batch, const Chunks& chunks, uint64_t first) {
    const uint64_t now = to_ns(Clock::now());
    for (const net::Inbox::Datagrams& from : batch) {
      for (std::size_t at = 0; at < from.bytes.size(); at += from.segment) {
        const std::size_t bytes = std::min<std::size_t>(from.segment, from.bytes.size() - at);
        Arrival arrival{};
        addend_control_ended ended{};
        switch (stream_.receive(from.bytes.subspan(at, bytes), now, arrival, ended)) {
          case Stream::Verdict::kIgnored:
            break;
          case Stream::Verdict::kNotice:
            ended_ = ended;
            break;
          case Stream::Verdict::kLeftBehind:
            return make_error(Errc::kUnavailable,
                              "this worker was left behind: the others went on at a quorum, and "
                              "sums that it lacks are gone; take the model's state from another "
                              "worker and join anew");
          case Stream::Verdict::kArrived:
            first_came_ = first_came_ || arrival.number == first;
            store(chunks.at(arrival.number - first), arrival);
        }
      }
    }
    return {};
  }

  void store(const Chunk& chunk, const Arrival& arrival) {
    const uint64_t absent = low_mask(session_->welcome().world) & ~arrival.contributors;
    absence_.somewhere |= absent;
    absence_.everywhere &= absent;
    const std::span<uint8_t> to = chunk.sums();
    std::memcpy(to.data(), arrival.sums.data(), to.size());
    if (by_switch()) swap_lanes(chunk.plane->op, to);
  }

  // The server is gone: it may come back without its memory, and all workers with it. They then
  // agree through it on the first turn that some of them lack, and send that again.
  Result<Deadline> rejoin(Deadline deadline) override {
    session_.reset();
    // What was closed without somebody would be closed again, perhaps without somebody else.
    if (quorum_ > 0) stream_ = Stream(options_.slots, payload_bytes_);
    std::optional<Error> last;
    Deadline until = deadline;
    if (options_.return_timeout.count() > 0)
      until = std::min(until, Clock::now() + options_.return_timeout);
    for (auto pause = kReconnectPause; Clock::now() < until && !interrupted_;
         pause = std::min(2 * pause, kMostReconnectPause)) {
      const auto patience = std::min(until, Clock::now() + options_.join_timeout);
      auto session = Session::join(options_, socket_, stream_.positions(), patience, &interrupted_);
      if (session) {
        session_ = *std::move(session);
        const Status status = resume(until);
        gone_ = false;
        if (status) return until;
        if (session_->news() != Session::News::kGone) return status.error();
        last = status.error();
      } else {
        if (!may_pass(session.error())) return session.error();
        // What the end of the time cuts short says less than what came before.
        if (!last || Clock::now() < until) last = session.error();
      }
      rest(std::min(until, Clock::now() + pause));
    }
    if (interrupted_) return interrupted();
    return make_error(Errc::kTimeout, "this worker could not join again: " +
                                          (last ? last->message : "the aggregator is gone"));
  }

  // Until then, or until somebody interrupts.
  void rest(Clock::time_point until) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    pollfd ready{interruption_.get(), POLLIN, 0};
    poll(&ready, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
  }

  // The server, or some worker, is not back yet.
  static bool may_pass(const Error& error) {
    return error.code == Errc::kUnavailable || error.code == Errc::kIo ||
           error.code == Errc::kTimeout;
  }

  void pause() override { rest(Clock::now() + kAskAgainPause); }

  Status resume(Deadline deadline) {
    if (quorum_ > 0 && session_->positions().empty()) return lost_place();
    if (session_->welcome().quorum != quorum_) {
      return make_error(Errc::kMismatch,
                        "the job has a quorum of " + std::to_string(session_->welcome().quorum) +
                            " workers now, and had one of " + std::to_string(quorum_));
    }
    if (session_->welcome().slots != stream_.positions().size()) {
      return make_error(Errc::kMismatch, "the job has other slots now");
    }
    if (by_switch() != was_by_switch_) {
      return make_error(Errc::kMismatch,
                        by_switch() ? "a switch folds the job now; all workers must join anew"
                                    : "no switch folds the job any more; all workers must "
                                      "join anew");
    }
    if (by_leaf() != was_by_leaf_) {
      return make_error(Errc::kMismatch,
                        "the server's place in its tree has changed; all workers must join anew");
    }
    ADDEND_TRY(check_operations(ops_, session_->welcome().ops));
    if (session_->welcome().payload_bytes != payload_bytes_) {
      return make_error(Errc::kMismatch, "the path between the server and some worker carries " +
                                             std::to_string(session_->welcome().payload_bytes) +
                                             " bytes of planes in a datagram now and carried " +
                                             std::to_string(payload_bytes_) +
                                             "; all workers must join anew");
    }
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      auto number = session_->table(tables_[i], deadline);
      if (!number) return number.error();
      stream_.set_table(static_cast<uint32_t>(i), *number);
    }
    return stream_.enter(view());
  }

  // Our own number of a plane's table; numbers of the aggregator's change with the epoch.
  Result<uint32_t> table_of(const Plane& plane, Deadline deadline) {
    Table table{};
    for (std::size_t i = 0; i < table.size(); ++i) {
      table[i] = plane.op == Op::kTableSumU16 ? static_cast<const uint16_t*>(plane.table)[i]
                                              : static_cast<const uint8_t*>(plane.table)[i];
    }
    const auto known = std::find(tables_.begin(), tables_.end(), table);
    if (known != tables_.end()) return static_cast<uint32_t>(known - tables_.begin());
    if (tables_.size() == ADDEND_MAX_JOB_TABLES) {
      return make_error(Errc::kCapacity, "a job has at most 16 tables");
    }
    auto number = session_->table(table, deadline);
    while (!number && may_pass(number.error()) && session_->news() == Session::News::kGone) {
      ADDEND_TRY(server_gone(deadline));
      if (gone_) return number.error();
      number = session_->table(table, deadline);
    }
    if (!number) return number.error();
    tables_.push_back(table);
    stream_.set_table(static_cast<uint32_t>(tables_.size() - 1), *number);
    return static_cast<uint32_t>(tables_.size() - 1);
  }

  ServiceReducerOptions options_;
  std::atomic<bool> interrupted_{false};  // nothing takes it back
  net::Descriptor interruption_;          // readable from then on
  net::UdpSocket socket_;
  net::Inbox inbox_;
  net::Outbox outbox_;
  std::unique_ptr<Session> session_;
  uint32_t payload_bytes_, quorum_;
  bool was_by_switch_;  // contributions that are kept are in its byte order
  bool was_by_leaf_;    // and not longer than it can send on
  uint32_t ops_;        // that rounds were begun with
  Stream stream_;
  Outcomes outcomes_;
  IntegerRounds integer_rounds_;
  Forecast forecast_;
  std::vector<Table> tables_;
  std::vector<std::span<const uint8_t>> pieces_;
  std::optional<addend_control_ended> ended_;  // the server told everybody why the epoch is over

  bool gone_ = false;        // the server, and its memory with it; with a quorum
  bool first_came_ = false;  // the first chunk of this round has come back
  Absence absence_;          // in the chunks of this round
};

Status check(const ServiceReducerOptions& options) {
  if (options.world == 0 || options.world > ADDEND_CONTROL_MAX_WORKERS) {
    return make_error(Errc::kInvalidArgument,
                      "the service has 1 to 64 workers a job, and 1 to 4096 in a tree");
  }
  if (options.worker >= options.world) {
    return make_error(Errc::kInvalidArgument, "worker numbers go from 0 to world - 1");
  }
  if (options.job.size() >= ADDEND_CONTROL_NAME_BYTES) {
    return make_error(Errc::kInvalidArgument, "a job's name has at most 63 letters");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Reducer>> join_server(const ServiceReducerOptions& options) {
  ADDEND_TRY(check(options));
  return ServiceReducer::create(options);
}

}  // namespace addend::service_client
