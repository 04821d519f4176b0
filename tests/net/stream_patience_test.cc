// SPDX-License-Identifier: Apache-2.0
// Who is missed when patience ends, in virtual time: one worker stops in the middle of a round, on
// links that lose datagrams, and what the others sent is late or lost too.
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/support/stream_wire.h"

namespace addend::service_client {
namespace {

constexpr uint64_t kPatienceNs = 1'500'000'000;
constexpr uint32_t kWorld = 4, kStopped = 3;

// Long enough that lost datagrams are sent again only a few times before patience ends, as where a
// machine is busy.
constexpr uint64_t kRoundTripsNs[] = {20'000'000, 60'000'000, 100'000'000};

// A queue that was full for a tenth of a millisecond.
Link link_of(uint64_t round_trip_ns) {
  Link link{round_trip_ns, 0.001};
  link.burst_ns = 100'000;
  return link;
}

// Runs of which the aggregator said something wrong of workers that had not stopped.
template <typename IsWrong>
uint32_t count_wrong(uint32_t runs, const Policy& policy, IsWrong is_wrong) {
  uint32_t wrong = 0;
  for (const uint64_t round_trip_ns : kRoundTripsNs) {
    for (uint64_t seed = 1; seed <= runs; ++seed) {
      Wire wire(seed, kWorld, link_of(round_trip_ns), policy);
      wire.stop(kStopped, addend_random(seed, 1) % (4 * round_trip_ns));
      wire.step({2048});
      if (!is_wrong(wire)) continue;
      std::printf("seed %u, %u ms\n", static_cast<uint32_t>(seed),
                  static_cast<uint32_t>(round_trip_ns / 1'000'000));
      ++wrong;
    }
  }
  return wrong;
}

bool names_another(const Wire& wire) {
  return !wire.notice() || wire.notice()->op != ADDEND_NOTICE_TIMEOUT ||
         wire.notice()->worker != kStopped;
}
bool misses_another(const Wire& wire) {
  return wire.notice() || wire.missed() != uint64_t{1} << kStopped;
}

TEST(Patience, NamesTheWorkerThatStopped) {
  EXPECT_EQ(count_wrong(150, {kPatienceNs, 0, 1}, names_another), 0u);
}

TEST(Patience, NamesTheWorkerThatStoppedWhateverThreadItIsOverIn) {
  EXPECT_EQ(count_wrong(150, {kPatienceNs, 0, 4}, names_another), 0u);
}

TEST(Patience, LeavesOutTheWorkerThatStopped) {
  EXPECT_EQ(count_wrong(10, {kPatienceNs, kWorld - 2, 1}, misses_another), 0u);
}

TEST(Patience, LeavesOutTheWorkerThatStoppedWhateverThreadItIsOverIn) {
  EXPECT_EQ(count_wrong(10, {kPatienceNs, kWorld - 2, 4}, misses_another), 0u);
}

}  // namespace
}  // namespace addend::service_client
