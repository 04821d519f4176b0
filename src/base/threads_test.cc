// SPDX-License-Identifier: Apache-2.0
#include "addend/threads.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "base/chunks.h"
#include "base/float_environment.h"
#include "base/quiet_thread.h"
#include "gtest/gtest.h"

namespace addend {
namespace {

TEST(ThreadPool, EveryChunkIsDoneOnceByAThreadOfItsOwnNumber) {
  for (const uint32_t threads : {1u, 2u, 3u, 4u, 7u}) {
    ThreadPool pool(threads);
    const ThreadPool::Use use(pool);
    ASSERT_EQ(loop_threads(), threads);
    for (uint64_t chunks = 0; chunks < 200; ++chunks) {
      std::vector<uint32_t> done(chunks, 0);
      std::vector<std::atomic<uint32_t>> inside(threads);
      for_each_chunk(chunks, [&](uint64_t chunk, uint32_t thread) {
        ASSERT_LT(thread, threads);
        ASSERT_EQ(inside[thread]++, 0u) << "two callers have one number";
        ++done[chunk];
        --inside[thread];
      });
      ASSERT_EQ(done, std::vector<uint32_t>(chunks, 1)) << threads << " threads";
    }
  }
}

// An encoder and a decoder share one; each returns with its own loop done.
TEST(ThreadPool, SeveralOwnersShareIt) {
  ThreadPool pool(3);
  std::vector<std::thread> owners;
  for (int owner = 0; owner < 3; ++owner) {
    owners.emplace_back([&pool] {
      const ThreadPool::Use use(pool);
      for (int loop = 0; loop < 300; ++loop) {
        std::vector<uint64_t> squares(50, 0);
        for_each_chunk(50, [&](uint64_t chunk, uint32_t) { squares[chunk] = chunk * chunk; });
        for (uint64_t i = 0; i < 50; ++i)
          ASSERT_EQ(squares[i], i * i);
      }
    });
  }
  for (std::thread& owner : owners)
    owner.join();
}

TEST(ThreadPool, HelpersAreReallyThere) {
  ThreadPool pool(3);
  const ThreadPool::Use use(pool);
  // Each chunk waits for the two others: only three threads at once can end this loop.
  std::atomic<uint32_t> here = 0;
  for_each_chunk(3, [&](uint64_t, uint32_t) {
    ++here;
    here.notify_all();
    for (uint32_t seen = here; seen < 3; seen = here)
      here.wait(seen);
  });
  EXPECT_EQ(here, 3u);
}

TEST(ThreadPool, OnlyTheThreadThatUsesItHasIt) {
  ThreadPool outer(4), inner(2);
  EXPECT_EQ(loop_threads(), 1u);
  {
    const ThreadPool::Use use(outer);
    {
      const ThreadPool::Use other(inner);
      EXPECT_EQ(loop_threads(), 2u);
    }
    EXPECT_EQ(loop_threads(), 4u);
    uint32_t elsewhere = 0;
    std::thread([&] { elsewhere = loop_threads(); }).join();
    EXPECT_EQ(elsewhere, 1u);
  }
  EXPECT_EQ(loop_threads(), 1u);
}

TEST(ThreadPool, PartsCoverTheWholeAndEndWithIt) {
  ThreadPool pool(2);
  const ThreadPool::Use use(pool);
  for (const uint64_t count : {0u, 1u, 63u, 64u, 65u, 1000u}) {
    std::vector<uint32_t> done(count, 0);
    for_each_part(count, 64, [&](uint64_t begin, uint64_t end) {
      ASSERT_EQ(begin % 64, 0u);
      for (uint64_t i = begin; i < end; ++i)
        ++done[i];
    });
    EXPECT_EQ(done, std::vector<uint32_t>(count, 1));
  }
}

#if defined(__x86_64__)
// Threads inherit the settings of whoever starts them.
TEST(ThreadPool, HelpersKeepSubnormalsWhateverTheirMakerDoes) {
  uint32_t before = 0;
  __asm__ volatile("stmxcsr %0" : "=m"(before));
  const uint32_t flushing = before | 0x8040;
  ThreadPool pool(2);
  const ThreadPool::Use use(pool);
  __asm__ volatile("ldmxcsr %0" : : "m"(flushing) : "memory");
  std::atomic<uint32_t> here = 0;
  uint32_t seen[2] = {};
  for_each_chunk(2, [&](uint64_t, uint32_t thread) {
    uint32_t mine = 0;
    __asm__ volatile("stmxcsr %0" : "=m"(mine));
    seen[thread] = mine;
    ++here;
    here.notify_all();
    for (uint32_t now = here; now < 2; now = here)
      here.wait(now);
  });
  __asm__ volatile("ldmxcsr %0" : : "m"(before) : "memory");
  EXPECT_EQ(seen[0] & 0x8040, 0x8040u);
  EXPECT_EQ(seen[1] & 0x8040, 0u);
}
#endif

TEST(ThreadPool, ADefaultIsAShareOfTheCoresAndAtMostFour) {
  const uint32_t cores = usable_cores();
  ASSERT_GE(cores, 1u);
  EXPECT_EQ(default_threads(1), std::min(cores, 4u));
  EXPECT_EQ(default_threads(cores), 1u);
  EXPECT_EQ(default_threads(2 * cores), 1u);
  EXPECT_EQ(default_threads(0), default_threads(1));
}

// As where the system has no thread to give.
struct CannotStart {
  CannotStart() = default;
  CannotStart(CannotStart&&) { throw std::system_error(EAGAIN, std::generic_category()); }
  void operator()() const {}
};

TEST(QuietThread, OneThatDoesNotStartLeavesItsMakersSignals) {
  sigset_t none, before, after;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, &before);
  EXPECT_THROW(quiet_thread("addend test", CannotStart()), std::system_error);
  pthread_sigmask(SIG_SETMASK, &before, &after);
  EXPECT_EQ(sigismember(&after, SIGINT), 0);
}

}  // namespace
}  // namespace addend
