// SPDX-License-Identifier: Apache-2.0
// Workers of a job with a quorum over a bad network, whose server is killed again and again, also
// while they recover from the last time; a worker stalls now and then. Without sockets or time:
// each worker is a thread, and one runs at a time, when the test says so. What a worker has
// finished every other one must finish with the same bits, of the same set of workers, after as
// many attempts; or be told that it was left behind.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "aggregate/slots.h"
#include "base/bits.h"
#include "gtest/gtest.h"
#include "reduce/service/chunks.h"
#include "reduce/service/outcomes.h"
#include "reduce/service/stream.h"
#include "tests/support/keys.h"
#include "wire/hash.h"

namespace addend::service_client {
namespace {

constexpr uint32_t kPayload = 64;
constexpr uint64_t kTickNs = 20'000;
constexpr uint64_t kPatienceNs = 50'000 * kTickNs;
constexpr uint64_t kSteps = 40, kMaxCalls = 3;

auth::FrameKey key_of(uint8_t fill) {
  return *auth::FrameKey::create(testing_support::secret_of(fill), kPayload);
}

struct Faults {
  uint32_t loss_percent = 0;
  uint32_t kills = 0;
  uint32_t stalls = 0;  // of one worker at a time
};

// What came of a step.
struct Finished {
  std::vector<int32_t> sums;
  uint64_t missing = 0;
  uint32_t attempts = 0;
  bool operator==(const Finished&) const = default;
};

class Simulation;

// A worker: its thread, its calls, and what it sees of the server.
class Worker final : public Epochs {
 public:
  Worker(Simulation& simulation, uint32_t number, uint32_t world);
  ~Worker() override { thread_.join(); }

  Result<std::optional<Absence>> fold(Round& round, uint8_t flags, Deadline) override;
  Result<Deadline> rejoin(Deadline deadline) override;
  void pause() override;

  /// Lets it run until it has nothing to do for now.
  void resume() {
    go_.release();
    back_.acquire();
  }
  bool is_idle() const;
  bool over() const { return over_; }
  const Status& status() const { return status_; }
  /// All have joined.
  void enter(const EpochView& view) {
    stream_ = Stream(slots_, kPayload);
    EXPECT_TRUE(stream_.enter(view));
    epoch_ = view.epoch;
    joined = false;
  }
  bool joined = false;  // waits for the others
  uint32_t shares = 0;  // rounds in which sums were shared
  std::deque<std::vector<uint8_t>> inbox;

 private:
  void yield(uint64_t until_ns = 0) {
    idle_until_ns_ = until_ns;
    back_.release();
    go_.acquire();
  }
  Status run_steps();
  Status attempt(uint64_t step, uint32_t attempts, Finished& finished);
  Result<bool> receive(const Chunks& chunks, uint64_t first, Absence& absence);

  Simulation& simulation_;
  uint32_t number_, world_, slots_;
  Outcomes outcomes_;
  Stream stream_;
  uint32_t epoch_ = 0;
  uint64_t idle_until_ns_ = 0;  // if nothing happens before
  Status status_;
  bool over_ = false;
  std::binary_semaphore go_{0}, back_{0};
  std::thread thread_;
};

class Simulation {
 public:
  Simulation(uint64_t seed, uint32_t world, uint32_t slots, const Faults& faults)
      : seed_(seed), faults_(faults), kills_(faults.kills), result_key_(key_of(99)) {
    options_.boot = 1;
    options_.world = world;
    options_.slots = slots;
    options_.payload_bytes = kPayload;
    options_.ops = 1u << ADDEND_OP_SUM_I32 | 1u << ADDEND_OP_OR_U64;
    options_.patience_ns = kPatienceNs;
    options_.quorum = world - 1;
    for (uint32_t w = 0; w < world; ++w)
      worker_keys_.push_back(key_of(static_cast<uint8_t>(w)));
    for (uint32_t w = 0; w < world; ++w)
      workers_.push_back(std::make_unique<Worker>(*this, w, world));
    begin_epoch();
  }

  void run() {
    uint32_t stalls = faults_.stalls;
    for (now_ns_ = 0; !all_over(); now_ns_ += kTickNs) {
      // Where somebody has failed, the others may wait until their deadline.
      if (now_ns_ > 100'000'000'000u && !hopeless_) {
        EXPECT_GT(failed_, 0u) << "seed " << seed_ << ": no end";
        hopeless_ = true;
      }
      if (stalls > 0 && now_ns_ >= next_stall_ns_) {
        --stalls;
        stalled_ = draw(options_.world);
        stalled_until_ns_ = now_ns_ + draw(5) * kPatienceNs / 2 + draw(2000) * kTickNs;
        next_stall_ns_ = stalled_until_ns_ + draw(3000) * kTickNs;
        // While the others wait for it, or go on without it.
        next_kill_ns_ = now_ns_ + draw(2) * draw(120'000) * kTickNs;
      }
      for (uint32_t w = 0; w < options_.world; ++w) {
        const bool stalled = w == stalled_ && now_ns_ < stalled_until_ns_;
        if (workers_[w]->over() || workers_[w]->is_idle()) continue;
        if (!hopeless_ && (stalled || draw(4) == 0)) continue;
        workers_[w]->resume();
        if (workers_[w]->over() && !workers_[w]->status()) ++failed_;
      }
      if (up_) {
        pass_on();
        aggregate::Reply reply;
        while (slots_->expire(now_ns_, reply))
          send_back(reply, options_.world);
        if (kills_ > 0 && !somebody_is_done() && now_ns_ >= next_kill_ns_ && draw(20) == 0) kill();
      } else {
        gather();
      }
    }
  }

  uint32_t draw(uint32_t range) {
    return addend_reduce32(static_cast<uint32_t>(addend_random(seed_, draws_++) >> 32), range);
  }
  const aggregate::SlotsOptions& options() const { return options_; }
  uint64_t now_ns() const { return now_ns_; }
  /// Of the server that is there; another one if it went meanwhile.
  uint32_t epoch() const { return up_ ? options_.epoch : 0; }
  /// Nobody can go on: somebody who has failed would have to join again.
  bool hopeless() const { return hopeless_; }
  uint64_t seed() const { return seed_; }

  void post(std::vector<uint8_t> frame) { send({options_.world, std::move(frame)}); }

  // Whoever is first to finish a step says what it is.
  void finish(uint32_t worker, uint64_t step, const Finished& finished) {
    const auto known = finished_.insert({step, finished}).first;
    EXPECT_EQ(known->second.sums, finished.sums) << "seed " << seed_ << " step " << step;
    EXPECT_EQ(known->second.missing, finished.missing) << "seed " << seed_ << " step " << step;
    EXPECT_EQ(known->second.attempts, finished.attempts)
        << "seed " << seed_ << " step " << step << " worker " << worker;
  }

  uint32_t failed() const { return failed_; }
  uint32_t kills_done() const { return faults_.kills - kills_; }
  uint64_t shares() const {
    uint64_t sum = 0;
    for (const auto& worker : workers_)
      sum += worker->shares;
    return sum;
  }
  uint64_t steps() const { return finished_.size(); }
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }

 private:
  struct Flight {
    uint32_t to;  // a worker, or world for the aggregator
    std::vector<uint8_t> bytes;
  };

  bool all_over() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->over(); });
  }
  bool somebody_is_done() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& w) { return w->over() && w->status(); });
  }

  void begin_epoch() {
    ++options_.epoch;
    slots_ = std::make_unique<aggregate::Slots>(*aggregate::Slots::create(options_));
    up_ = true;
    for (uint32_t w = 0; w < options_.world; ++w) {
      workers_[w]->enter(
          {options_.epoch, options_.boot, w, options_.world, &worker_keys_[w], &result_key_, {}});
    }
    // Often while workers still recover.
    next_kill_ns_ = now_ns_ + draw(2) * draw(400) * kTickNs;
    next_stall_ns_ = now_ns_ + (draw(2) == 0 ? draw(20) : draw(2000)) * kTickNs;
  }

  void kill() {
    --kills_;
    ++options_.boot;
    up_ = false;
    wire_.clear();
    for (const auto& worker : workers_) {
      if (draw(2) == 0) worker->inbox.clear();  // the rest is read, and too late
    }
  }

  void gather() {
    // Whoever has done its last step, or failed, does not come back.
    if (failed_ > 0 || somebody_is_done()) hopeless_ = true;
    const bool all = std::all_of(workers_.begin(), workers_.end(),
                                 [](const auto& worker) { return worker->joined; });
    if (all) begin_epoch();
  }

  void send(Flight flight) {
    if (!up_ || draw(100) < faults_.loss_percent) return;
    if (draw(100) < 3) wire_.push_back(flight);
    wire_.push_back(std::move(flight));
  }

  void pass_on() {
    for (std::size_t left = wire_.size(); left > 0 && !wire_.empty(); --left) {
      if (draw(8) == 0) continue;
      const uint32_t pick = draw(static_cast<uint32_t>(std::min<std::size_t>(wire_.size(), 4)));
      const Flight flight = wire_[pick];
      wire_.erase(wire_.begin() + pick);
      if (flight.to == options_.world)
        aggregate(flight.bytes);
      else
        workers_[flight.to]->inbox.push_back(flight.bytes);
    }
  }

  void aggregate(const std::vector<uint8_t>& bytes) {
    const addend_frame_header header = addend_frame_read(bytes.data());
    if (header.epoch != options_.epoch || header.boot != options_.boot) return;
    const auto outcome = slots_->handle(header, bytes.data() + ADDEND_FRAME_HEADER_BYTES,
                                        static_cast<uint32_t>(bytes.size()), now_ns_);
    EXPECT_NE(outcome.refusal, ADDEND_REFUSAL_MISMATCH) << "seed " << seed_;
    if (outcome.reply.audience != aggregate::Audience::kNobody)
      send_back(outcome.reply, header.worker);
  }

  void send_back(const aggregate::Reply& reply, uint32_t sender) {
    // When not everybody has heard of it.
    if ((reply.header.flags & ADDEND_FRAME_PARTIAL) != 0 && draw(8) == 0) next_kill_ns_ = now_ns_;
    addend_frame_header back = reply.header;
    addend_frame_swap(&back);
    back.tag = addend_be64(result_key_.tag(back, reply.payload));
    std::vector<uint8_t> frame(sizeof(back) + reply.payload.size());
    std::memcpy(frame.data(), &back, sizeof(back));
    if (!reply.payload.empty())
      std::memcpy(frame.data() + sizeof(back), reply.payload.data(), reply.payload.size());
    for (uint32_t w = 0; w < options_.world; ++w) {
      if (reply.audience == aggregate::Audience::kEveryone || w == sender) send({w, frame});
    }
  }

  uint64_t seed_, draws_ = 0, now_ns_ = 0;
  Faults faults_;
  uint32_t kills_;
  aggregate::SlotsOptions options_;
  auth::FrameKey result_key_;
  std::vector<auth::FrameKey> worker_keys_;
  std::unique_ptr<aggregate::Slots> slots_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::deque<Flight> wire_;
  std::map<uint64_t, Finished> finished_;
  uint64_t stalled_until_ns_ = 0, next_stall_ns_ = 0, next_kill_ns_ = 0;
  bool up_ = false, hopeless_ = false;
  uint32_t failed_ = 0, stalled_ = 0;
};

Worker::Worker(Simulation& simulation, uint32_t number, uint32_t world)
    : simulation_(simulation),
      number_(number),
      world_(world),
      slots_(simulation.options().slots),
      outcomes_(world, number),
      stream_(slots_, kPayload),
      thread_([this] {
        go_.acquire();
        status_ = run_steps();
        over_ = true;
        back_.release();
      }) {}

bool Worker::is_idle() const {
  if (simulation_.hopeless()) return false;
  if (joined) return true;
  return inbox.empty() && epoch_ == simulation_.epoch() && simulation_.now_ns() < idle_until_ns_;
}

// As the reducer does it, with the inbox for a socket.
Result<std::optional<Absence>> Worker::fold(Round& round, uint8_t flags, Deadline) {
  if (epoch_ != simulation_.epoch()) return std::optional<Absence>();
  if (round.planes[0].op == Op::kOrU64 && flags == 0) ++shares;
  const Chunks chunks(round, {kPayload, false});
  const uint64_t first = stream_.extend(chunks.size());
  Absence absence;
  while (!stream_.complete()) {
    for (uint64_t number = 0; stream_.next(number);) {
      const Chunk chunk = chunks.at(number - first);
      stream_.add(number, {chunk.plane->op, chunk.contribution(), 0, flags != 0});
    }
    for (const Stream::Frame& frame : stream_.collect(simulation_.now_ns()))
      simulation_.post({frame.bytes.begin(), frame.bytes.end()});
    yield(stream_.next_timeout_ns());
    if (simulation_.hopeless()) return make_error(Errc::kTimeout, "the deadline passed");
    if (epoch_ != simulation_.epoch() && inbox.empty()) return std::optional<Absence>();
    const auto received = receive(chunks, first, absence);
    if (!received) return received.error();
    if (epoch_ != simulation_.epoch() && !stream_.complete()) return std::optional<Absence>();
  }
  return std::optional<Absence>(absence);
}

Result<bool> Worker::receive(const Chunks& chunks, uint64_t first, Absence& absence) {
  for (; !inbox.empty(); inbox.pop_front()) {
    Arrival arrival{};
    addend_control_ended ended{};
    switch (stream_.receive(inbox.front(), simulation_.now_ns(), arrival, ended)) {
      case Stream::Verdict::kIgnored:
        break;
      case Stream::Verdict::kNotice:
        return make_error(Errc::kTimeout, "fewer than the quorum");
      case Stream::Verdict::kLeftBehind:
        return make_error(Errc::kUnavailable, "left behind");
      case Stream::Verdict::kArrived:
        const uint64_t absent = low_mask(world_) & ~arrival.contributors;
        absence.somewhere |= absent;
        absence.everywhere &= absent;
        const auto to = chunks.at(arrival.number - first).sums();
        std::memcpy(to.data(), arrival.sums.data(), to.size());
    }
  }
  return true;
}

Result<Deadline> Worker::rejoin(Deadline deadline) {
  inbox.clear();
  joined = true;
  yield();
  if (simulation_.hopeless()) return make_error(Errc::kTimeout, "not all workers came");
  return deadline;
}

void Worker::pause() { yield(simulation_.now_ns() + 10'000 * kTickNs); }

// How calls follow each other is the same on all workers, and no more. Some steps go on after a
// call that has to be repeated, as a bucket of several parts does.
Status Worker::attempt(uint64_t step, uint32_t attempts, Finished& finished) {
  const uint64_t shape = addend_random(simulation_.seed(), step);
  const auto calls = 1 + static_cast<uint32_t>(shape % kMaxCalls);
  const bool goes_on = (shape >> 8) % 2 == 0;
  finished = {};
  finished.attempts = attempts;
  outcomes_.begin_step();
  Status changed;
  for (uint32_t call = 0; call < calls && (changed || goes_on); ++call) {
    const uint64_t lanes = 1 + addend_random(shape, call) % 60;
    const auto value = [&](uint64_t lane) {
      return static_cast<uint32_t>(
          addend_random(simulation_.seed() + attempts, step << 16 | call << 8 | lane) % 255 + 1);
    };
    std::vector<int32_t> sums(lanes);
    for (uint64_t lane = 0; lane < lanes; ++lane)
      sums[lane] = static_cast<int32_t>(value(lane) << 8 * number_);
    Round round;
    round.add({Op::kSumI32, lanes, sums.data(), nullptr, nullptr});
    const Status status = outcomes_.run(round, *this, Deadline::max());
    if (!status && status.error().code != Errc::kChanged) return status;
    if (!status) changed = status;
    if (!changed) continue;
    for (uint64_t lane = 0; lane < lanes; ++lane) {
      uint32_t expected = 0;
      for (uint32_t w = 0; w < world_; ++w)
        expected |= (outcomes_.missing() >> w & 1) != 0 ? 0 : value(lane) << 8 * w;
      EXPECT_EQ(static_cast<uint32_t>(sums[lane]), expected)
          << "seed " << simulation_.seed() << " worker " << number_ << " step " << step << " call "
          << call << " lane " << lane;
    }
    finished.sums.insert(finished.sums.end(), sums.begin(), sums.end());
  }
  finished.missing = outcomes_.missing();
  return changed;
}

Status Worker::run_steps() {
  for (uint64_t step = 0; step < kSteps; ++step) {
    Finished finished;
    Status status;
    for (uint32_t attempts = 1;; ++attempts) {
      status = attempt(step, attempts, finished);
      if (status || status.error().code != Errc::kChanged) break;
    }
    ADDEND_TRY(status);
    simulation_.finish(number_, step, finished);
    // Whatever a worker does between two steps.
    if (simulation_.draw(10) == 0) yield(simulation_.now_ns() + simulation_.draw(500) * kTickNs);
  }
  return {};
}

struct Totals {
  uint64_t kills = 0, shares = 0, failed = 0, whole = 0;
};

void run(uint64_t seed, const Faults& faults, Totals& totals) {
  const auto draw = [&](uint64_t i, uint32_t range) {
    return static_cast<uint32_t>(addend_random(seed, i) % range);
  };
  Simulation simulation(seed, 2 + draw(1, 3), 2 + draw(2, 20), faults);
  simulation.run();
  for (const auto& worker : simulation.workers()) {
    if (worker->status()) continue;
    const Error& error = worker->status().error();
    EXPECT_TRUE(error.code == Errc::kUnavailable || error.code == Errc::kTimeout)
        << "seed " << seed << ": " << error.message;
  }
  totals.kills += simulation.kills_done();
  totals.shares += simulation.shares();
  totals.failed += simulation.failed() > 0 ? 1 : 0;
  totals.whole += simulation.failed() == 0 ? 1 : 0;
}

// The server goes in the first call; then the others say what has ended for them, in words that
// mean nothing.
class Nonsense final : public Epochs {
 public:
  using Said = std::array<uint64_t, 4>;  // calls ended, how, words of sums, who was missing

  explicit Nonsense(std::vector<Said> others) : others_(std::move(others)) {}
  Result<std::optional<Absence>> fold(Round& round, uint8_t, Deadline) override {
    if (folds_++ == 0) return std::optional<Absence>();
    auto* words = static_cast<uint64_t*>(round.planes[0].data);
    for (const Said& said : others_)
      words = std::copy(said.begin(), said.end(), words + said.size()) - said.size();
    return std::optional<Absence>({0, 0});
  }
  Result<Deadline> rejoin(Deadline deadline) override { return deadline; }
  void pause() override {}

 private:
  std::vector<Said> others_;
  uint64_t folds_ = 0;
};

TEST(QuorumRecovery, NonsenseIsUndecodable) {
  const std::vector<Nonsense::Said> cases[] = {
      {{1, 1, 7, 0}},                                 // sums of another length
      {{1, 3, 7, 0}},                                 // nothing that there is
      {{1, 1, 30, 0}, {2, 1, uint64_t{1} << 61, 0}},  // sums of a call that is not begun here
  };
  for (const auto& others : cases) {
    Nonsense epochs(others);
    Outcomes outcomes(static_cast<uint32_t>(others.size()) + 1, 0);
    std::vector<int32_t> lanes(60);
    Round round;
    round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
    outcomes.begin_step();
    const Status status = outcomes.run(round, epochs, Deadline::max());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUndecodable) << status.error().message;
  }
}

// Whoever is far behind has no other measure for sums than what it is told: here, 32 GiB.
class FarAhead final : public Epochs {
 public:
  Result<std::optional<Absence>> fold(Round& round, uint8_t, Deadline) override {
    if (folds_++ == 0) return std::optional<Absence>();
    auto* words = static_cast<uint64_t*>(round.planes[0].data);
    if (folds_ == 3) {
      EXPECT_EQ(round.planes[0].lanes, kWords);
      EXPECT_EQ(words[0] | words[kWords - 1], 0u);
      return make_error(Errc::kTimeout, "so it ends");
    }
    const uint64_t said[] = {0, 0, 0, 0, 1, 1, 30, 0, 2, 1, kWords, 0};
    std::copy(std::begin(said), std::end(said), words);
    return std::optional<Absence>({0, 0});
  }
  Result<Deadline> rejoin(Deadline deadline) override { return deadline; }
  void pause() override {}

 private:
  static constexpr uint64_t kWords = uint64_t{1} << 32;
  uint32_t folds_ = 0;
};

TEST(QuorumRecovery, SumsThatMemoryMayNotHoldAreNoException) {
  FarAhead epochs;
  Outcomes outcomes(3, 0);
  uint64_t lane = 0;
  Round round;
  round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
  outcomes.begin_step();
  const Status status = outcomes.run(round, epochs, Deadline::max());
  ASSERT_FALSE(status);
  // Address space is enough, or there is a limit to it.
  EXPECT_TRUE(status.error().code == Errc::kTimeout || status.error().code == Errc::kOutOfMemory)
      << status.error().message;
}

// The server goes in the first call, worker 1 is not in the next answer, and then there is an
// error.
class Late final : public Epochs {
 public:
  explicit Late(Errc code) : code_(code) {}
  Result<std::optional<Absence>> fold(Round&, uint8_t, Deadline) override {
    if (folds_ == 2) return make_error(code_, "so it ends");
    return folds_++ == 0 ? std::optional<Absence>() : std::optional<Absence>({2, 0});
  }
  Result<Deadline> rejoin(Deadline deadline) override { return deadline; }
  void pause() override {}

 private:
  Errc code_;
  uint32_t folds_ = 0;
};

TEST(QuorumRecovery, WhoDidNotComeBackIsNamedWhereTheTimeIsOver) {
  for (const Errc code : {Errc::kTimeout, Errc::kUnavailable}) {
    Late epochs(code);
    Outcomes outcomes(2, 0);
    uint64_t lane = 0;
    Round round;
    round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    outcomes.begin_step();
    const Status status = outcomes.run(round, epochs, Deadline::max());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, code);
    const bool named = status.error().message.find("worker 1 did not come back") == 0;
    EXPECT_EQ(named, code == Errc::kTimeout) << status.error().message;
  }
}

TEST(QuorumRecovery, WithoutKillsNothingIsRepeatedOrLost) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 20; ++seed)
    run(seed, {2, 0, 0}, totals);
  EXPECT_EQ(totals.whole, 20u);
}

TEST(QuorumRecovery, EveryStepIsTheSameForAllWhoeverHadFinishedIt) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    run(seed, {static_cast<uint32_t>(seed % 10), 1 + static_cast<uint32_t>(seed % 8), 0}, totals);
    if (::testing::Test::HasFailure()) return;
  }
  std::printf("%u kills, %u shared sums, %u of 150 jobs ended early\n",
              static_cast<uint32_t>(totals.kills), static_cast<uint32_t>(totals.shares),
              static_cast<uint32_t>(totals.failed));
  EXPECT_EQ(totals.whole, 150u);
  EXPECT_GT(totals.kills, 300u);
  EXPECT_GT(totals.shares, 30u);
}

TEST(QuorumRecovery, AWorkerThatStalledGoesOnOrKnowsWhyNot) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    run(seed, {static_cast<uint32_t>(seed % 5), 1 + static_cast<uint32_t>(seed % 8), 6}, totals);
    if (::testing::Test::HasFailure()) return;
  }
  std::printf("%u kills, %u shared sums, %u of 500 jobs ended early\n",
              static_cast<uint32_t>(totals.kills), static_cast<uint32_t>(totals.shares),
              static_cast<uint32_t>(totals.failed));
  EXPECT_GT(totals.failed, 5u);
  EXPECT_GT(totals.whole, 10u);
}

}  // namespace
}  // namespace addend::service_client
