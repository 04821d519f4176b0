// SPDX-License-Identifier: Apache-2.0
// Workers as threads. A round has three phases, each ended by all workers arriving: everyone shows
// its planes (the last to arrive compares their shapes), everyone folds its own slice of every
// plane over all workers and writes the result to all of them, everyone leaves. A worker that does
// not arrive before the deadline breaks the group for all.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <vector>

#include "addend/fold.h"
#include "addend/reduce.h"
#include "base/bits.h"
#include "cuda/memory.h"
#include "reduce/host_memory.h"
#include "wire/hash.h"

namespace addend {
namespace {

// Lanes folded at a time: a tile of every width stays in a first-level cache while all workers are
// added to it. Even, so that a tile of 4-bit indices starts on a byte.
constexpr uint64_t kTileLanes = 2048;
constexpr uint64_t kTileBytes = kTileLanes * 8;

class LocalState {
 public:
  LocalState(uint32_t world, const LocalOptions& options)
      : world_(world),
        options_(options),
        rounds_(world, nullptr),
        arrived_(world, 0),
        // One tile per level of the tree; a chain needs one.
        tiles_(world,
               std::vector<uint64_t>((ceil_log2(std::max(world, 2u)) * 2 + 2) * kTileBytes / 8)) {}

  uint32_t world() const { return world_; }

  /// No round ends any more: this worker will not come.
  void leave(uint32_t worker) {
    const std::lock_guard lock(mutex_);
    break_down(Errc::kUnavailable, "worker " + std::to_string(worker) + " left the group");
  }

  Status reduce(uint32_t worker, Round& round, Deadline deadline) {
    rounds_slot(worker, &round);
    ADDEND_TRY(arrive(worker, deadline, "start of a round"));
    Status verdict = verdict_of_round();
    if (verdict) fold_slice(worker, round);
    finish_folding();
    // Everyone goes through the second barrier, also after a mismatch: the group stays usable and
    // nobody's planes go away early.
    ADDEND_TRY(arrive(worker, deadline, "end of a round"));
    return verdict;
  }

 private:
  void rounds_slot(uint32_t worker, Round* round) {
    const std::lock_guard lock(mutex_);
    rounds_[worker] = round;
  }
  // Until every worker has left the fold, planes of others may still be read and written.
  void finish_folding() {
    const std::lock_guard lock(mutex_);
    if (--folding_ == 0) changed_.notify_all();
  }
  Status verdict_of_round() {
    const std::lock_guard lock(mutex_);
    return mismatch_.empty() ? Status{} : Status(make_error(Errc::kMismatch, mismatch_));
  }

  Status arrive(uint32_t worker, Deadline deadline, const char* where) {
    std::unique_lock lock(mutex_);
    if (broken_) {
      wait_for_folds(lock);
      return make_error(Errc::kUnavailable, broken_->message);
    }
    const uint64_t phase = phase_;
    arrived_[worker] = 1;
    if (++waiting_ == world_) {
      if (phase % 2 == 0) {
        compare_shapes();
        folding_ = world_;
      }
      waiting_ = 0;
      std::fill(arrived_.begin(), arrived_.end(), 0);
      ++phase_;
      changed_.notify_all();
      return {};
    }
    const auto done = [&] { return phase_ != phase || broken_; };
    if (!changed_.wait_until(lock, deadline, done)) {
      break_down(Errc::kTimeout, "round " + std::to_string(phase / 2) +
                                     ": the deadline passed at the " + where +
                                     " while waiting for " + missing());
    }
    if (phase_ != phase) return {};
    wait_for_folds(lock);
    return *broken_;
  }

  // The first reason counts. REQUIRES: the lock.
  void break_down(Errc code, const std::string& why) {
    if (!broken_) broken_ = make_error(code, why);
    changed_.notify_all();
  }

  // Folding is arithmetic and ends; only then may this worker's planes go away.
  void wait_for_folds(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return folding_ == 0; });
  }

  std::string missing() const {
    std::string names;
    uint32_t count = 0;
    for (uint32_t w = 0; w < world_; ++w) {
      if (arrived_[w] != 0) continue;
      if (++count <= 8) names += (names.empty() ? "worker " : ", worker ") + std::to_string(w);
    }
    return count > 8 ? names + " and " + std::to_string(count - 8) + " more" : names;
  }

  void compare_shapes() {
    mismatch_.clear();
    const Round& first = *rounds_[0];
    for (uint32_t w = 1; w < world_ && mismatch_.empty(); ++w) {
      const Round& other = *rounds_[w];
      bool same = other.size == first.size;
      for (std::size_t i = 0; same && i < first.size; ++i) {
        same = same_shape(first.planes[i], other.planes[i]);
      }
      if (!same) {
        mismatch_ = "worker " + std::to_string(w) + " brought " + describe(other) +
                    " to a round where worker 0 brought " + describe(first);
      }
    }
    if (mismatch_.empty()) set_order();
  }

  static bool same_shape(const Plane& a, const Plane& b) {
    if (a.op != b.op || a.lanes != b.lanes) return false;
    const uint32_t table = op_table_bytes(a.op);
    return table == 0 || std::memcmp(a.table, b.table, table) == 0;
  }

  static std::string describe(const Round& round) {
    std::string text;
    for (const Plane& plane : round) {
      text += (text.empty() ? "" : " + ") + std::to_string(plane.lanes) + " lanes of " +
              op_name(plane.op);
    }
    return text.empty() ? "no planes" : text;
  }

  // The workers in the order of this round. kSequential keeps their numbers.
  void set_order() {
    order_.resize(world_);
    std::iota(order_.begin(), order_.end(), 0);
    round_seed_ = addend_random(options_.seed, phase_);
    if (options_.order == FoldOrder::kSequential) return;
    for (uint32_t i = world_; i > 1; --i) {
      std::swap(order_[i - 1], order_[addend_random(round_seed_, i) % i]);
    }
  }

  void fold_slice(uint32_t worker, Round& round) {
    for (std::size_t p = 0; p < round.size; ++p) {
      const uint64_t tile_count = ceil_div(round.planes[p].lanes, kTileLanes);
      const uint64_t first = tile_count * worker / world_,
                     last = tile_count * (worker + 1) / world_;
      for (uint64_t t = first; t < last; ++t)
        fold_tile(p, t * kTileLanes, tiles_[worker].data());
    }
  }

  void fold_tile(std::size_t p, uint64_t begin, uint64_t* tiles) {
    const Plane& plane = rounds_[0]->planes[p];
    const uint64_t lanes = std::min(kTileLanes, plane.lanes - begin);
    const uint64_t sum_bytes = op_sum_bytes(plane.op, lanes);
    if (is_narrow_sum(plane.op)) {
      fold_narrow(p, begin, lanes, tiles);
    } else if (options_.order == FoldOrder::kTree) {
      fold_tree(p, begin, lanes, 0, world_, tiles);
    } else {
      load(p, order_[0], begin, lanes, tiles);
      for (uint32_t i = 1; i < world_; ++i)
        combine(p, order_[i], begin, lanes, tiles);
    }
    for (uint32_t w = 0; w < world_; ++w) {
      Plane& target = rounds_[w]->planes[p];
      auto* sums = static_cast<uint8_t*>(is_table_sum(plane.op) ? target.sums : target.data);
      std::memcpy(sums + op_sum_bytes(plane.op, begin), tiles, sum_bytes);
    }
  }

  // All at once: narrow sums do not add up any further. A tile of them is a whole number of groups.
  void fold_narrow(std::size_t p, uint64_t begin, uint64_t lanes, uint64_t* tile) {
    const Plane& plane = rounds_[0]->planes[p];
    std::vector<const uint8_t*> sources;
    for (const uint32_t w : order_) {
      const auto* data = static_cast<const uint8_t*>(rounds_[w]->planes[p].data);
      sources.push_back(data + op_bytes(plane.op, begin));
    }
    fold_tables(plane.op, tile, sources.data(), sources.size(), plane.table, lanes);
  }

  // Folds workers order_[low, high) into tiles[0]; a seeded split decides the tree. The right half
  // goes to the next tile.
  void fold_tree(std::size_t p, uint64_t begin, uint64_t lanes, uint32_t low, uint32_t high,
                 uint64_t* tiles) {
    if (high - low == 1) return load(p, order_[low], begin, lanes, tiles);
    // Between a third and two thirds, so that the depth stays logarithmic.
    const uint32_t size = high - low, third = size / 3;
    const uint64_t draw = addend_random(round_seed_, uint64_t{low} << 32 | high);
    const uint32_t split = low + std::max(1u, third + static_cast<uint32_t>(draw % (third + 1)));
    uint64_t* right = tiles + kTileBytes / 8;
    fold_tree(p, begin, lanes, low, split, tiles);
    fold_tree(p, begin, lanes, split, high, right);
    fold(sum_lanes(rounds_[0]->planes[p].op), tiles, right, lanes);
  }

  // What a table sum's result adds up with.
  static Op sum_lanes(Op op) {
    if (op == Op::kTableSumU8) return Op::kSumU8;
    return op == Op::kTableSumU16 ? Op::kSumU16 : op;
  }

  void load(std::size_t p, uint32_t worker, uint64_t begin, uint64_t lanes, uint64_t* tile) {
    const Plane& plane = rounds_[worker]->planes[p];
    if (is_table_sum(plane.op)) {
      std::memset(tile, 0, op_sum_bytes(plane.op, lanes));
      return combine(p, worker, begin, lanes, tile);
    }
    const auto* data = static_cast<const uint8_t*>(plane.data) + op_bytes(plane.op, begin);
    std::memcpy(tile, data, op_bytes(plane.op, lanes));
  }

  void combine(std::size_t p, uint32_t worker, uint64_t begin, uint64_t lanes, uint64_t* tile) {
    const Plane& plane = rounds_[worker]->planes[p];
    const auto* data = static_cast<const uint8_t*>(plane.data) + op_bytes(plane.op, begin);
    if (is_table_sum(plane.op)) {
      fold_table(plane.op, tile, data, plane.table, lanes);
    } else {
      fold(plane.op, tile, data, lanes);
    }
  }

  const uint32_t world_;
  const LocalOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t waiting_ = 0;
  uint64_t phase_ = 0;
  std::vector<Round*> rounds_;
  std::vector<uint8_t> arrived_;
  uint32_t folding_ = 0;         // workers between the barriers of a round
  std::optional<Error> broken_;  // why nothing works any more

  // Written by the last worker to arrive, read by all before the next phase ends.
  std::string mismatch_;
  std::vector<uint32_t> order_;
  uint64_t round_seed_ = 0;
  std::vector<std::vector<uint64_t>> tiles_;  // per worker, its own
};

// The sums of one worker are its lanes; of table sums their entries.
Status sum_alone_on_device(Round& round) {
  const auto device = cuda::Device::of(round.execution.stream);
  ADDEND_TRY(device);
  const cuda::OnDevice here(*device);
  for (Plane& plane : round) {
    if (!is_table_sum(plane.op)) continue;
    const uint64_t bytes = op_sum_bytes(plane.op, plane.lanes);
    ADDEND_TRY(device->check(device->runtime->fill(plane.sums, 0, bytes, device->stream),
                             "clearing sums"));
    const auto* indices = static_cast<const uint8_t*>(plane.data);
    ADDEND_TRY(fold_tables_on_device(plane.op, plane.sums, &indices, 1, plane.table, plane.lanes,
                                     device->stream));
  }
  return {};
}

class LocalReducer final : public Reducer {
 public:
  LocalReducer(std::shared_ptr<LocalState> state, uint32_t worker)
      : state_(std::move(state)), worker_(worker) {}
  uint32_t world() const override { return state_->world(); }
  uint32_t worker() const override { return worker_; }
  uint32_t local_workers() const override { return world(); }
  Status reduce(Round& round, Deadline deadline) override {
    if (world() == 1 && round.execution.device != Execution::Device::kCpu)
      return sum_alone_on_device(round);
    ADDEND_TRY(check_host_memory(round));
    return state_->reduce(worker_, round, deadline);
  }
  void interrupt() override { state_->leave(worker_); }
  void abandon() override {
    Reducer::abandon();
    state_->leave(worker_);
  }

 private:
  std::shared_ptr<LocalState> state_;
  uint32_t worker_;
};

class Group final : public LocalGroup {
 public:
  Group(uint32_t world, const LocalOptions& options)
      : state_(std::make_shared<LocalState>(world, options)) {}
  uint32_t world() const override { return state_->world(); }
  std::unique_ptr<Reducer> reducer(uint32_t worker) override {
    return std::make_unique<LocalReducer>(state_, worker);
  }

 private:
  std::shared_ptr<LocalState> state_;
};

}  // namespace

Result<std::unique_ptr<LocalGroup>> create_local_group(uint32_t world,
                                                       const LocalOptions& options) {
  if (world == 0) return make_error(Errc::kInvalidArgument, "a group needs at least one worker");
  return std::unique_ptr<LocalGroup>(std::make_unique<Group>(world, options));
}

}  // namespace addend
