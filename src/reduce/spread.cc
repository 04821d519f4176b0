// SPDX-License-Identifier: Apache-2.0
#include "reduce/spread.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"
#include "reduce/host_memory.h"

namespace addend {
namespace {

constexpr uint64_t kGrain = 4096;  // lanes

uint8_t* ahead(void* memory, uint64_t bytes) { return static_cast<uint8_t*>(memory) + bytes; }

// The reducers below do all their work in the thread that waits for them, so each has one of its
// own but for the share that the caller's thread takes.
class SpreadReducer final : public Reducer {
 public:
  explicit SpreadReducer(std::vector<SpreadPart> parts) : parts_(parts.size()) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts_[i].name = std::move(parts[i].name);
      parts_[i].reducer = std::move(parts[i].reducer);
    }
    for (Part& part : parts_)
      part.thread = quiet_thread("addend share", [this, &part] { serve(part); });
  }
  ~SpreadReducer() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    given_.notify_all();
    for (Part& part : parts_)
      part.thread.join();
  }

  uint32_t world() const override { return parts_[0].reducer->world(); }
  uint32_t worker() const override { return parts_[0].reducer->worker(); }
  uint32_t local_workers() const override { return parts_[0].reducer->local_workers(); }
  double float_error() const override {
    double most = 0;
    for (const Part& part : parts_)
      most = std::max(most, part.reducer->float_error());
    return most;
  }
  void begin_step() override {
    for (Part& part : parts_)
      part.reducer->begin_step();
  }
  void set_link(const Link& link) override {
    for (Part& part : parts_)
      part.reducer->set_link(link);
  }
  void interrupt() override {
    for (Part& part : parts_)
      part.reducer->interrupt();
  }

  Status reduce(Round& round, Deadline deadline) override {
    ADDEND_TRY(check_host_memory(round));
    ADDEND_TRY(check_usable());
    Part* own = nullptr;
    {
      const std::lock_guard lock(mutex_);
      deadline_ = deadline;
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        Part& part = parts_[i];
        part.round = share_of(round, i, parts_.size());
        if (part.round.bytes() == 0) continue;
        if (own == nullptr) {
          own = &part;
        } else {
          part.given = true;
          ++under_way_;
        }
      }
    }
    given_.notify_all();
    if (own != nullptr) run(*own, deadline);
    std::unique_lock lock(mutex_);
    over_.wait(lock, [&] { return under_way_ == 0; });
    if (failure_) return broken_by(*failure_);
    return {};
  }

 private:
  struct Part {
    std::string name;
    std::unique_ptr<Reducer> reducer;
    Round round;         // its share
    bool given = false;  // to its thread
    std::thread thread;
  };

  void run(Part& part, Deadline deadline) {
    const Status status = part.reducer->reduce(part.round, deadline);
    if (status) return;
    const std::lock_guard lock(mutex_);
    if (failure_) return;  // most likely because of the first one
    failure_ = make_error(status.error().code, part.name + ": " + status.error().message);
    for (Part& other : parts_) {
      if (&other != &part) other.reducer->interrupt();
    }
  }

  void serve(Part& part) {
    std::unique_lock lock(mutex_);
    while (true) {
      given_.wait(lock, [&] { return stop_ || part.given; });
      if (!part.given) return;
      part.given = false;
      const Deadline deadline = deadline_;
      lock.unlock();
      run(part, deadline);
      lock.lock();
      if (--under_way_ == 0) over_.notify_all();
    }
  }

  std::vector<Part> parts_;
  std::mutex mutex_;
  std::condition_variable given_, over_;
  Deadline deadline_;  // these four guarded by mutex_ while rounds are under way
  std::size_t under_way_ = 0;
  bool stop_ = false;
  std::optional<Error> failure_;
};

}  // namespace

Round share_of(const Round& round, std::size_t i, std::size_t shares) {
  Round share;
  share.last = round.last;
  for (const Plane& plane : round) {
    const auto bound = [&](std::size_t n) {
      return n == shares ? plane.lanes : plane.lanes / shares * n / kGrain * kGrain;
    };
    const uint64_t first = bound(i), lanes = bound(i + 1) - first;
    if (lanes == 0) continue;
    Plane piece = plane;
    piece.lanes = lanes;
    piece.data = ahead(plane.data, op_bytes(plane.op, first));
    if (is_table_sum(plane.op)) piece.sums = ahead(plane.sums, op_sum_bytes(plane.op, first));
    piece.bounds = nullptr;  // a hint, which does not hold for a part of the lanes
    share.add(piece);
  }
  return share;
}

Result<std::unique_ptr<Reducer>> create_spread_reducer(std::vector<SpreadPart> parts) {
  for (const SpreadPart& part : parts) {
    if (part.reducer->quorum() == 0) continue;
    return make_error(Errc::kUnsupported,
                      part.name +
                          ": a job with a quorum has one aggregator: several could each go "
                          "on without another worker");
  }
  return std::unique_ptr<Reducer>(std::make_unique<SpreadReducer>(std::move(parts)));
}

}  // namespace addend
