// SPDX-License-Identifier: Apache-2.0
// A round on a device, reduced by a reducer of the host: chunks of its planes are copied to pinned
// memory one after the other, each is started there as soon as it has come, and its sums go back
// while later ones are on the wire.
//
//   codec's stream --> copies out --> host's reducer, chunk by chunk --> copies back --> the stream
//
// Chunks are started in one order on every worker, that of the rounds and within them of the
// planes, so workers whose gradients are on the host take the same way without the copies.
#include "reduce/staged.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/memory.h"
#include "reduce/bus.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

// A device that failed does not tell: its events are looked at so often.
constexpr auto kLookAgain = std::chrono::milliseconds(10);

/// A chunk on its way.
struct Leg {
  staged::Chunk what;
  Round round;            // on the host
  void* event = nullptr;  // its copy out; null: it was there
  std::optional<uint64_t> number;
};

/// A round on its way.
struct Way {
  uint64_t number = 0;
  Round* round = nullptr;
  std::optional<std::vector<Reducer::Claim>> claims;  // the first of a step
  std::deque<Leg> legs;
  std::size_t started = 0, ended = 0;
  std::optional<cuda::PinnedBuffer> memory;
  std::optional<Error> failure;

  bool is_over() const {
    return ended == legs.size() || (failure && failure->code != Errc::kChanged);
  }
};

class StagedReducer final : public Reducer {
 public:
  StagedReducer(std::unique_ptr<Reducer> host, const StagedOptions& options)
      : host_(std::move(host)), options_(options) {}
  ~StagedReducer() override {
    if (bus_) bus_->drain();
    for (Cooling& one : cooling_)
      bus_->give(one.event);
    for (Way& way : ways_)
      give_events(way);
  }

  uint32_t world() const override { return host_->world(); }
  uint32_t worker() const override { return host_->worker(); }
  uint32_t local_workers() const override { return host_->local_workers(); }
  void begin_step() override { host_->begin_step(); }
  uint32_t quorum() const override { return host_->quorum(); }
  uint64_t missing() const override { return host_->missing(); }
  void set_link(const Link& link) override { host_->set_link(link); }
  double float_error() const override { return host_->float_error(); }
  bool can_wake() const override { return host_->can_wake(); }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
      changed_.notify_all();
    }
    host_->wake();
  }
  void interrupt() override {
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = true;
      changed_.notify_all();
    }
    host_->interrupt();
  }
  void abandon() override {
    host_->abandon();
    if (bus_) bus_->drain();
    for (Way& way : ways_)
      give_events(way);
    ways_.clear();
  }

  Status reduce(Round& round, Deadline deadline) override {
    const Result<uint64_t> number = start(round);
    ADDEND_TRY(number);
    while (true) {
      const Result<bool> done = wait(*number, deadline);
      ADDEND_TRY(done);
      if (*done) return {};
    }
  }

  Result<uint64_t> start(Round& round) override { return start_way(round, std::nullopt); }
  Result<uint64_t> start_step(std::span<const Claim> claims, Round& round) override {
    return start_way(round, std::vector<Claim>(claims.begin(), claims.end()));
  }

  Result<bool> wait(uint64_t number, Deadline deadline) override {
    Way* way = find(number);
    if (way == nullptr)
      return make_error(Errc::kInvalidArgument, "round " + std::to_string(number) + " is unknown");
    while (!way->is_over()) {
      const Result<bool> moved = move(*way, deadline);
      if (!moved) {
        way->failure = moved.error();
        break;
      }
      if (!*moved) return false;
    }
    const std::optional<Error> failure = way->failure;
    if (failure && way->started > way->ended) host_->abandon();  // the rest has no meaning
    forget(number);
    if (failure) return *failure;
    return true;
  }

  Result<bool> wait_any(std::span<const uint64_t> numbers, Deadline deadline) override {
    if (!host_->can_wake()) return true;
    while (true) {
      for (const uint64_t number : numbers) {
        const Way* way = find(number);
        if (way == nullptr || way->is_over()) return true;
      }
      ADDEND_TRY(start_what_came());
      if (take_wake()) return false;
      std::vector<uint64_t> legs;
      for (const uint64_t number : numbers) {
        const Way& way = *find(number);
        if (way.started > way.ended) legs.push_back(*way.legs[way.ended].number);
      }
      if (legs.empty()) {
        const Result<bool> came = wait_for_copy(deadline);
        ADDEND_TRY(came);
        if (!*came) return false;
        continue;
      }
      const Result<bool> some = host_->wait_any(legs, deadline);
      ADDEND_TRY(some);
      if (!*some && !take_copied()) return false;
      for (const uint64_t number : numbers)
        collect_ended(*find(number), deadline);
    }
  }

  bool has_ended(uint64_t number) const override {
    for (const Way& way : ways_) {
      if (way.number != number) continue;
      if (way.failure || way.started < way.legs.size()) return false;
      for (std::size_t i = way.ended; i < way.legs.size(); ++i)
        if (!host_->has_ended(*way.legs[i].number)) return false;
      return true;
    }
    return false;
  }

 private:
  /// Pinned memory that copies back may still be reading.
  struct Cooling {
    cuda::PinnedBuffer memory;
    void* event;
  };

  // ---- starting

  Result<uint64_t> start_way(Round& round, std::optional<std::vector<Claim>> claims) {
    {
      const std::lock_guard lock(mutex_);
      woken_ = false;
    }
    Way way;
    way.number = next_number_++;
    way.round = &round;
    way.claims = std::move(claims);
    for (const staged::Chunk& chunk : staged::cut(round, options_.chunk_bytes)) {
      way.legs.emplace_back();
      way.legs.back().what = chunk;
    }
    const bool on_device = round.execution.device != Execution::Device::kCpu;
    if (on_device && round.bytes() > 0) {
      ADDEND_TRY(copy_out(way));
    } else {
      for (Leg& leg : way.legs)
        fill_round(leg, round, nullptr, {});
    }
    ways_.push_back(std::move(way));
    const uint64_t number = ways_.back().number;
    const Status started = start_what_came();
    if (started) return number;
    // Its planes are the caller's again.
    if (bus_) bus_->drain();
    if (find(number)->started > find(number)->ended) host_->abandon();
    forget(number);
    return started.error();
  }

  static void fill_round(Leg& leg, const Round& round, uint8_t* memory,
                         const staged::Places& places) {
    for (std::size_t i = 0; i < leg.what.size; ++i) {
      const staged::Piece& piece = leg.what.pieces[i];
      const Plane& whole = round.planes[piece.plane];
      Plane plane = whole;
      plane.lanes = piece.lanes;
      auto* data =
          memory == nullptr ? static_cast<uint8_t*>(whole.data) : memory + places.data[piece.plane];
      auto* sums =
          memory == nullptr ? static_cast<uint8_t*>(whole.sums) : memory + places.sums[piece.plane];
      plane.data = data + op_bytes(whole.op, piece.first);
      plane.sums = is_table_sum(whole.op) ? sums + op_sum_bytes(whole.op, piece.first) : nullptr;
      leg.round.add(plane);
    }
  }

  Status copy_out(Way& way) {
    ADDEND_TRY(Bus::reach(way.round->execution.stream, bus_));
    const cuda::Device& device = bus_->device();
    const cuda::OnDevice here(device);
    const staged::Places places = staged::place(*way.round);
    ADDEND_TRY(take_memory(places.bytes, way));
    ADDEND_TRY(bus_->order(way.round->execution.stream, bus_->out()));
    for (Leg& leg : way.legs) {
      fill_round(leg, *way.round, way.memory->host<uint8_t>(), places);
      for (std::size_t i = 0; i < leg.what.size; ++i) {
        const staged::Piece& piece = leg.what.pieces[i];
        const Plane& plane = way.round->planes[piece.plane];
        const auto* from =
            static_cast<const uint8_t*>(plane.data) + op_bytes(plane.op, piece.first);
        ADDEND_TRY(device.check(device.runtime->copy(leg.round.planes[i].data, from,
                                                     op_bytes(plane.op, piece.lanes), bus_->out()),
                                "copying a plane to the host"));
      }
      const Result<void*> event = bus_->event();
      ADDEND_TRY(event);
      leg.event = *event;
      ADDEND_TRY(device.check(device.runtime->record(leg.event, bus_->out()), "an event"));
      ADDEND_TRY(bus_->tell(leg.event, &StagedReducer::copy_came, this));
    }
    return {};
  }

  // In a thread of the driver.
  static void copy_came(void* self) {
    auto* reducer = static_cast<StagedReducer*>(self);
    {
      const std::lock_guard lock(reducer->mutex_);
      reducer->copied_ = true;
      reducer->changed_.notify_all();
    }
    reducer->host_->wake();
  }

  Status take_memory(uint64_t bytes, Way& way) {
    const cuda::RuntimeTable* runtime = bus_->device().runtime;
    for (auto one = cooling_.begin(); one != cooling_.end(); ++one) {
      if (one->memory.capacity() < bytes || runtime->query_event(one->event) != 0) continue;
      way.memory.emplace(std::move(one->memory));
      bus_->give(one->event);
      cooling_.erase(one);
      return {};
    }
    way.memory.emplace(runtime);
    return way.memory->reserve(bytes);
  }

  // In order: a chunk whose copy is under way holds up those behind it.
  Status start_what_came() {
    for (Way& way : ways_) {
      while (way.started < way.legs.size()) {
        Leg& leg = way.legs[way.started];
        if (leg.event != nullptr) {
          const int code = bus_->device().runtime->query_event(leg.event);
          if (code == cuda::RuntimeTable::kNotReady) return {};
          ADDEND_TRY(bus_->device().check(code, "copying a plane to the host"));
        }
        const Result<uint64_t> number = way.started == 0 && way.claims
                                            ? host_->start_step(*way.claims, leg.round)
                                            : host_->start(leg.round);
        ADDEND_TRY(number);
        leg.number = *number;
        ++way.started;
      }
    }
    return {};
  }

  // ---- waiting

  // One thing more has happened to this round; false if the caller was to be woken.
  Result<bool> move(Way& way, Deadline deadline) {
    ADDEND_TRY(start_what_came());
    if (take_wake()) return false;
    if (way.started == way.ended) return wait_for_copy(deadline);
    const Result<bool> done = host_->wait(*way.legs[way.ended].number, deadline);
    if (done && !*done) return take_copied();
    ADDEND_TRY(end_leg(way, done ? Status() : Status(done.error())));
    return true;
  }

  void collect_ended(Way& way, Deadline deadline) {
    while (!way.is_over() && way.started > way.ended &&
           host_->has_ended(*way.legs[way.ended].number)) {
      const Result<bool> done = host_->wait(*way.legs[way.ended].number, deadline);
      if (done && !*done) return;
      const Status status = end_leg(way, done ? Status() : Status(done.error()));
      if (!status) way.failure = status.error();
    }
  }

  // Workers that changed did so for all: the other chunks are waited for, too.
  Status end_leg(Way& way, const Status& status) {
    Leg& leg = way.legs[way.ended++];
    if (!status && status.error().code != Errc::kChanged) return status;
    if (!status) way.failure = status.error();
    if (leg.event == nullptr) return {};
    const cuda::OnDevice here(bus_->device());
    if (!way.failure) ADDEND_TRY(copy_back(way, leg));
    if (way.ended < way.legs.size()) return {};
    return bus_->order(bus_->back(), way.round->execution.stream);
  }

  Status copy_back(const Way& way, const Leg& leg) {
    const cuda::Device& device = bus_->device();
    for (std::size_t i = 0; i < leg.what.size; ++i) {
      const staged::Piece& piece = leg.what.pieces[i];
      const Plane& there = way.round->planes[piece.plane];
      const Plane& here = leg.round.planes[i];
      const bool table = is_table_sum(there.op);
      auto* to = static_cast<uint8_t*>(table ? there.sums : there.data) +
                 op_sum_bytes(there.op, piece.first);
      ADDEND_TRY(
          device.check(device.runtime->copy(to, table ? here.sums : here.data,
                                            op_sum_bytes(there.op, piece.lanes), bus_->back()),
                       "copying sums to the device"));
    }
    return {};
  }

  // Until a copy out has come; false if the caller was to be woken.
  Result<bool> wait_for_copy(Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLookAgain, [&] { return copied_ || woken_ || interrupted_; });
    if (interrupted_) return make_error(Errc::kUnavailable, "interrupted");
    if (!std::exchange(copied_, false) && !woken_ && Clock::now() >= deadline)
      return make_error(Errc::kTimeout, "the device did not bring a plane to the host in time");
    return !std::exchange(woken_, false);
  }

  bool take_wake() {
    const std::lock_guard lock(mutex_);
    return std::exchange(woken_, false);
  }
  bool take_copied() {
    const std::lock_guard lock(mutex_);
    return std::exchange(copied_, false) && !std::exchange(woken_, false);
  }

  Way* find(uint64_t number) {
    for (Way& way : ways_)
      if (way.number == number) return &way;
    return nullptr;
  }

  void give_events(Way& way) {
    for (Leg& leg : way.legs)
      if (leg.event != nullptr) bus_->give(std::exchange(leg.event, nullptr));
  }

  void forget(uint64_t number) {
    Way& way = *find(number);
    give_events(way);
    if (way.memory) cool(std::move(*way.memory));
    std::erase_if(ways_, [&](const Way& one) { return one.number == number; });
  }

  // Where that cannot be arranged, the copies are waited for.
  void cool(cuda::PinnedBuffer memory) {
    const cuda::OnDevice here(bus_->device());
    const Result<void*> event = bus_->event();
    if (event && bus_->device().runtime->record(*event, bus_->back()) == 0) {
      cooling_.push_back({std::move(memory), *event});
    } else {
      bus_->drain();
    }
  }

  const std::unique_ptr<Reducer> host_;
  const StagedOptions options_;
  std::unique_ptr<Bus> bus_;
  std::deque<Way> ways_;
  std::vector<Cooling> cooling_;
  uint64_t next_number_ = 0;

  std::mutex mutex_;  // of the three: other threads set them
  std::condition_variable changed_;
  bool copied_ = false;       // a chunk came from the device
  bool woken_ = false;        // by the caller's side
  bool interrupted_ = false;  // likewise, for good
};

}  // namespace

Result<std::unique_ptr<Reducer>> create_staged_reducer(std::unique_ptr<Reducer> host,
                                                       const StagedOptions& options) {
  if (!host) return make_error(Errc::kInvalidArgument, "a reducer of the host is needed");
  if (options.chunk_bytes < StagedOptions::kLeastBytes)
    return make_error(Errc::kInvalidArgument, "a chunk has at least 4096 bytes");
  return std::unique_ptr<Reducer>(std::make_unique<StagedReducer>(std::move(host), options));
}

}  // namespace addend
