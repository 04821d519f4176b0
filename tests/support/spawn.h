// SPDX-License-Identifier: Apache-2.0
// Runs a function once per worker, each in its own thread with its end of a local group.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "addend/reduce.h"
#include "gtest/gtest.h"

namespace addend::testing_support {

inline void spawn_workers(uint32_t world, const LocalOptions& options,
                          const std::function<void(uint32_t worker, Reducer& reducer)>& body) {
  auto group = create_local_group(world, options);
  ASSERT_TRUE(group);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < world; ++w) {
    threads.emplace_back([&, w] {
      const std::unique_ptr<Reducer> reducer = (*group)->reducer(w);
      body(w, *reducer);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

/// Far enough that only a bug reaches it.
inline Deadline far() { return std::chrono::steady_clock::now() + std::chrono::minutes(5); }
/// Already over: whoever has to wait, times out.
inline Deadline past() { return std::chrono::steady_clock::now() - std::chrono::seconds(1); }

}  // namespace addend::testing_support
