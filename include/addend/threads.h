// SPDX-License-Identifier: Apache-2.0
// Threads that help to encode and decode. A pipeline has such a pool (PipelineOptions::threads);
// callers that step codecs by hand may lend one to the thread that does it.
#pragma once

#include <cstdint>
#include <memory>

namespace addend {

/// `threads` that work on a gradient at once, the one that asks for it included, so that a pool of
/// 1 has none of its own. They are started when there is work for them, sleep between loops, and
/// take no signals. What codecs write does not depend on their number. Any number of threads may
/// use a pool at a time; a forked child cannot.
class ThreadPool {
 public:
  static constexpr uint32_t kMostThreads = 64;

  /// REQUIRES: 1 <= threads <= kMostThreads.
  explicit ThreadPool(uint32_t threads);
  /// REQUIRES: nobody uses it.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t threads() const;

  class State;

  /// While it lives, codecs that this thread steps share their work with the pool.
  class Use {
   public:
    explicit Use(ThreadPool& pool);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    State* before_;
  };

 private:
  std::unique_ptr<State> state_;
};

/// Cores that this process may run on.
uint32_t usable_cores();

/// Threads that a process should use by default where `processes` like it share a host: its share
/// of the cores, at most 4, at least 1.
uint32_t default_threads(uint32_t processes);

}  // namespace addend
