// SPDX-License-Identifier: Apache-2.0
// What tests of aggregation servers let workers do, each a thread with a reducer of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "addend/codec.h"
#include "addend/fold.h"
#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "gtest/gtest.h"
#include "tests/support/spawn.h"
#include "wire/frame.h"
#include "wire/hash.h"

namespace addend::testing_support {

/// Runs `body` on all workers when they have joined.
inline void work_together(uint32_t world,
                          const std::function<ServiceReducerOptions(uint32_t worker)>& options_for,
                          const std::function<void(Reducer&)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < world; ++w) {
    threads.emplace_back([&, w] {
      auto reducer = create_service_reducer(options_for(w));
      ASSERT_TRUE(reducer) << reducer.error().message;
      body(**reducer);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

/// Small values, so that 8-bit sums of a few workers stay in range.
inline std::vector<uint8_t> plane_of(uint32_t worker, Op op, uint64_t lanes) {
  std::vector<uint8_t> bytes(op_bytes(op, lanes));
  for (uint64_t i = 0; i < bytes.size(); ++i)
    bytes[i] = addend_random(worker * 100 + static_cast<uint64_t>(op), i) & 0x37;
  return bytes;
}

/// A round of each operation, but for floats: the order of arrival decides their last bits. Narrow
/// sums come in whole bytes. REQUIRES: at most 17 workers, whose sums a byte of a table holds.
inline void check_operations(Reducer& reducer, uint64_t most_lanes) {
  uint16_t table[16];
  uint8_t narrow[16];
  for (uint32_t i = 0; i < 16; ++i)
    narrow[i] = static_cast<uint8_t>(table[i] = static_cast<uint16_t>(i * (17 / reducer.world())));
  for (std::size_t o = 3; o < kOpCount; ++o) {
    const auto op = static_cast<Op>(o);
    const uint64_t lanes = is_narrow_sum(op) ? most_lanes / 8 * 8 : most_lanes;
    std::vector<uint8_t> data = plane_of(reducer.worker(), op, lanes);
    std::vector<uint8_t> sums(op_sum_bytes(op, lanes)), expected(sums.size());
    const void* entries = op == Op::kTableSumU16 ? static_cast<const void*>(table) : narrow;
    std::vector<uint16_t> grown(is_narrow_sum(op) ? lanes : 0);
    for (uint32_t w = 0; w < reducer.world(); ++w) {
      const std::vector<uint8_t> theirs = plane_of(w, op, lanes);
      void* acc = is_narrow_sum(op) ? static_cast<void*>(grown.data()) : expected.data();
      is_table_sum(op) ? fold_table(op, acc, theirs.data(), entries, lanes)
                       : fold(op, acc, theirs.data(), lanes);
    }
    if (is_narrow_sum(op)) narrow_sums(op, grown.data(), lanes, expected.data());
    Round round;
    round.add({op, lanes, data.data(), entries, sums.data()});
    const Status status = reducer.reduce(round, far());
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(is_table_sum(op) ? sums : data, expected) << op_name(op);
  }
}

/// One step of a codec, in place.
inline void sum_by(const char* spec, Reducer& reducer, DType dtype, uint64_t count,
                   void* gradient) {
  Layout layout;
  layout.dtype = dtype;
  layout.count = count;
  layout.world = reducer.world();
  layout.worker = reducer.worker();
  auto codec = create_codec(*CodecSpec::parse(spec), layout);
  ASSERT_TRUE(codec);
  auto pipeline = create_pipeline(reducer, {});
  ASSERT_TRUE(pipeline);
  auto ticket = (*pipeline)->submit(**codec, gradient);
  ASSERT_TRUE(ticket);
  const Status status = (*pipeline)->wait(*ticket);
  ASSERT_TRUE(status) << spec << ": " << status.error().message;
}

}  // namespace addend::testing_support
