// SPDX-License-Identifier: Apache-2.0
// Who of a job's workers is waited for. One object for all slots of an epoch, whatever threads they
// are spread over: a worker that was left out of one sum is left out of all of them until the next
// step begins, so that the sums of a step are of one set of workers. And where the job's parts
// wait: patience ends at the first of these places (docs/decisions/0056-patience-ends-in-order.md).
//
//   waited for --miss: a turn closed at a quorum without it--> absent --hear: it sent--> heard
//     ^  ^                                                       |                         |
//     |  '------ enter: it is in the first turn of a step -------'                         |
//     '--------- enter: somebody begins a step --------------------------------------------'
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "wire/control.h"

namespace addend::aggregate {

/// Where a turn is in the order in which all workers send: a slot that is `position` turns into its
/// stream, modulo 2^32. Never 0.
inline uint64_t place_of(uint32_t position, uint32_t slot) {
  return uint64_t{position} << 32 | uint64_t{slot} << 1 | 1;
}
inline bool is_before(uint64_t place, uint64_t other) {
  return static_cast<int64_t>(place - other) < 0;
}

/// Where a part of a job waits: its first open turn, and who is not in it. In turns behind the
/// job's first one also those may be missing who wait there.
struct Wait {
  uint64_t place = 0;  ///< 0: no turn is open
  uint64_t opened_ns = 0;
  uint64_t workers = 0;  ///< by bit

  /// Makes this the first of both.
  void join(const Wait& other) {
    if (other.place != 0 && (place == 0 || is_before(other.place, place))) *this = other;
  }
};

/// Any thread. A few words, each changed in one atomic operation: what a switch has, too.
class Attendance {
 public:
  /// Workers that nobody waits for, and whose contributions are refused.
  uint64_t absent() const { return absent_.load(std::memory_order_relaxed); }
  /// Whether nobody is absent, nor was until the step that goes on.
  bool all_present() const { return absent() == 0 && back_.load(std::memory_order_relaxed) == 0; }
  /// A turn was closed at a quorum without these.
  void miss(uint64_t workers) {
    back_.fetch_and(~workers, std::memory_order_relaxed);
    absent_.fetch_or(workers, std::memory_order_relaxed);
    misses_.fetch_add(1, std::memory_order_release);
  }
  /// How often somebody was missed: another number means that more workers may be absent.
  uint64_t misses() const { return misses_.load(std::memory_order_acquire); }
  /// Absent workers that send something again: they will be waited for in the next step.
  void hear(uint64_t workers) { back_.fetch_or(workers, std::memory_order_relaxed); }
  /// A step begins, with these and with all that were heard of.
  void enter(uint64_t workers) {
    workers |= back_.exchange(0, std::memory_order_relaxed);
    absent_.fetch_and(~workers, std::memory_order_relaxed);
  }

  /// A number for one more part of the job's slots. REQUIRES: at most ADDEND_CONTROL_MAX_THREADS.
  uint32_t enroll() { return parts_.fetch_add(1, std::memory_order_relaxed); }
  /// The first place that a part has been waiting at for long; 0: none.
  void wait_at(uint32_t part, uint64_t place) {
    waiting_[part].store(place, std::memory_order_release);
  }
  /// Whether no part waits at an earlier place. Who sees that one no longer does sees who was
  /// missed there, too.
  bool is_first(uint64_t place) const {
    return std::none_of(waiting_.begin(), waiting_.end(), [&](const std::atomic<uint64_t>& other) {
      const uint64_t waiting = other.load(std::memory_order_acquire);
      return waiting != 0 && is_before(waiting, place);
    });
  }

 private:
  std::atomic<uint64_t> absent_{0}, back_{0}, misses_{0};
  std::atomic<uint32_t> parts_{0};
  std::array<std::atomic<uint64_t>, ADDEND_CONTROL_MAX_THREADS> waiting_{};
};

}  // namespace addend::aggregate
