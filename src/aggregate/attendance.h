// SPDX-License-Identifier: Apache-2.0
// Who of a job's workers is waited for. One object for all slots of an epoch, whatever threads they
// are spread over: a worker that was left out of one sum is left out of all of them until the next
// step begins, so that the sums of a step are of one set of workers.
//
//   waited for --miss: a turn closed at a quorum without it--> absent --hear: it sent--> heard
//     ^  ^                                                       |                         |
//     |  '------ enter: it is in the first turn of a step -------'                         |
//     '--------- enter: somebody begins a step --------------------------------------------'
#pragma once

#include <atomic>
#include <cstdint>

namespace addend::aggregate {

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

 private:
  std::atomic<uint64_t> absent_{0}, back_{0}, misses_{0};
};

}  // namespace addend::aggregate
