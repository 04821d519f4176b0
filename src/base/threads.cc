// SPDX-License-Identifier: Apache-2.0
// A loop lies on the stack of the thread that began it, in a list while it has chunks to give away:
//
//   owner    listed --> takes chunks --> none left: unlisted --> waits for helpers --> returns
//   helper   sleeps --> finds a listed loop --> takes chunks --> none left: leaves --> sleeps
//
// A helper that has joined a loop keeps its owner from returning; one that comes too late finds no
// loop.
#include "addend/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <sched.h>

#include "base/assert.h"
#include "base/chunks.h"
#include "base/float_environment.h"
#include "base/quiet_thread.h"

namespace addend {
namespace {

constexpr uint32_t kMostByDefault = 4;

struct Loop {
  chunks::Call call;
  const void* body;
  uint64_t chunks;
  std::atomic<uint64_t> next{0};
  uint32_t helpers = 0;  // that are in it
  Loop* other = nullptr;

  void take_chunks(uint32_t thread) {
    for (;;) {
      const uint64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks) return;
      call(body, chunk, thread);
    }
  }
};

}  // namespace

class ThreadPool::State {
 public:
  explicit State(uint32_t number) : threads(number) {}

  ~State() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      work_.notify_all();
    }
    for (std::thread& helper : helpers_)
      helper.join();
  }

  void run(Loop& loop) {
    {
      const std::lock_guard lock(mutex_);
      open_helpers();
      loop.other = listed_;
      listed_ = &loop;
      for (uint64_t more = 1; more < std::min<uint64_t>(loop.chunks, threads); ++more)
        work_.notify_one();
    }
    loop.take_chunks(0);
    std::unique_lock lock(mutex_);
    Loop** at = &listed_;
    while (*at != &loop)
      at = &(*at)->other;
    *at = loop.other;
    left_.wait(lock, [&] { return loop.helpers == 0; });
  }

  const uint32_t threads;

 private:
  // Fewer will do where the system has no more.
  void open_helpers() {
    if (opened_) return;
    opened_ = true;
    try {
      helpers_.reserve(threads - 1);
      for (uint32_t thread = 1; thread < threads; ++thread)
        helpers_.push_back(quiet_thread("addend helper", [this, thread] { help(thread); }));
    } catch (const std::system_error&) {
    }
  }

  void help(uint32_t thread) {
    const FloatEnvironment ours;
    std::unique_lock lock(mutex_);
    while (!closed_) {
      Loop* loop = listed_;
      while (loop != nullptr && loop->next.load(std::memory_order_relaxed) >= loop->chunks)
        loop = loop->other;
      if (loop == nullptr) {
        work_.wait(lock);
        continue;
      }
      ++loop->helpers;
      lock.unlock();
      loop->take_chunks(thread);
      lock.lock();
      if (--loop->helpers == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;  // for helpers
  std::condition_variable left_;  // for owners
  Loop* listed_ = nullptr;
  bool opened_ = false;
  bool closed_ = false;
  std::vector<std::thread> helpers_;
};

namespace {

thread_local ThreadPool::State* t_pool = nullptr;

}  // namespace

ThreadPool::ThreadPool(uint32_t threads) : state_(std::make_unique<State>(threads)) {
  ADDEND_ASSERT(threads >= 1 && threads <= kMostThreads);
}
ThreadPool::~ThreadPool() = default;

uint32_t ThreadPool::threads() const { return state_->threads; }

ThreadPool::Use::Use(ThreadPool& pool) : before_(t_pool) { t_pool = pool.state_.get(); }
ThreadPool::Use::~Use() { t_pool = before_; }

uint32_t loop_threads() { return t_pool == nullptr ? 1 : t_pool->threads; }

void chunks::run(uint64_t chunks, Call call, const void* body) {
  if (chunks > 1 && loop_threads() > 1) {
    Loop loop{call, body, chunks};
    return t_pool->run(loop);
  }
  for (uint64_t chunk = 0; chunk < chunks; ++chunk)
    call(body, chunk, 0);
}

uint32_t usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
    const int count = CPU_COUNT(&cores);
    if (count > 0) return static_cast<uint32_t>(count);
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

uint32_t default_threads(uint32_t processes) {
  return std::clamp(usable_cores() / std::max(processes, 1u), 1u, kMostByDefault);
}

}  // namespace addend
