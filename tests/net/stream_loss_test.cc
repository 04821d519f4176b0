// SPDX-License-Identifier: Apache-2.0
// What loss costs, in virtual time.
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/support/stream_wire.h"

namespace addend::service_client {
namespace {

struct Load {
  const char* name;
  std::vector<uint64_t> rounds;  // chunks of each: the agree round, then the codec's
  int steps;
};

struct Outcome {
  double seconds;
  double again;  // of all contributions, those that were not the first
};

Outcome run(const Load& load, uint32_t world, const Link& link, uint64_t lag_ns = 0) {
  Wire wire(20261116, world, link);
  wire.set_lag(world - 1, lag_ns);
  wire.step(load.rounds);  // the window opens
  double sum = 0;
  for (int i = 0; i < load.steps; ++i)
    sum += wire.step(load.rounds);
  return {sum / load.steps, static_cast<double>(wire.resent()) / static_cast<double>(wire.sent())};
}

constexpr uint64_t kRoundTripsNs[] = {200'000, 2'000'000, 20'000'000, 80'000'000};

// Goodput against that of the same links without loss.
void expect_bars(const Load& load, uint32_t world, uint64_t round_trip_ns, double gbit_s = 10) {
  const Outcome none = run(load, world, {round_trip_ns, 0, gbit_s});
  const Outcome little = run(load, world, {round_trip_ns, 0.001, gbit_s});
  const Outcome much = run(load, world, {round_trip_ns, 0.01, gbit_s});
  const double of_little = none.seconds / little.seconds, of_much = none.seconds / much.seconds;
  std::printf(
      "%-14s %u workers, %4.1f Gbit/s, %4.1f ms: %.3f ms a step; 0.1 %% loss %.2f, 1 %% loss "
      "%.2f\n",
      load.name, world, gbit_s, static_cast<double>(round_trip_ns) * 1e-6, none.seconds * 1e3,
      of_little, of_much);
  EXPECT_EQ(none.again, 0);
  EXPECT_GE(of_little, 0.85) << load.name;
  EXPECT_GE(of_much, 0.5) << load.name;
  EXPECT_LE(much.again, 0.55) << load.name;
}
void expect_bars(const Load& load, uint32_t world) {
  for (const uint64_t round_trip_ns : kRoundTripsNs)
    expect_bars(load, world, round_trip_ns);
}

TEST(Loss, CostsLittleInSmallSparseSteps) { expect_bars({"exact 256 KiB", {1, 5, 10}, 60}, 4); }
TEST(Loss, CostsLittleInSmallDenseSteps) { expect_bars({"dense 256 KiB", {1, 187}, 60}, 4); }
TEST(Loss, CostsLittleInSparseSteps) { expect_bars({"exact 8 MiB", {1, 149, 300}, 20}, 2); }
TEST(Loss, CostsLittleInDenseSteps) { expect_bars({"dense 8 MiB", {1, 5958}, 2}, 2); }

TEST(Loss, CostsLittleInLargeDenseSteps) { expect_bars({"dense 64 MiB", {1, 47663}, 1}, 2); }

// Rounds of a few turns of all slots, each of which loses something.
const Load kFewTurns{"exact 64 MiB", {1, 1192, 2400}, 6};
TEST(Loss, CostsLittleInRoundsOfAFewTurns) { expect_bars(kFewTurns, 2); }

TEST(Loss, CostsLittleWhereARoundFillsThePath) {
  expect_bars({"dense 256 KiB", {1, 187}, 30}, 4, 2'000'000, 0.5);
  expect_bars(kFewTurns, 2, 20'000'000, 0.2);
}

// Timeouts used to learn from waits for what others had lost, and waits to grow with them.
TEST(Loss, DoesNotMakeAWorkerWaitLongerThanItsPathTakes) {
  const Load load{"one chunk", {1}, 400};
  for (const uint64_t round_trip_ns : kRoundTripsNs) {
    const Outcome outcome = run(load, 4, {round_trip_ns, 0.05});
    // A third of the steps lose something.
    EXPECT_LT(outcome.seconds, 2.5e-9 * static_cast<double>(round_trip_ns));
  }
}

TEST(Loss, IsNotSeenWhereAWorkerIsOnlySlow) {
  const Load load{"dense 256 KiB", {1, 187}, 30};
  for (const uint64_t round_trip_ns : kRoundTripsNs) {
    const uint64_t lag_ns = 20 * round_trip_ns;
    const Outcome outcome = run(load, 4, {round_trip_ns, 0}, lag_ns);
    // The others' windows have become narrow meanwhile.
    EXPECT_LT(outcome.seconds, static_cast<double>(lag_ns + 6 * round_trip_ns + 400'000) * 1e-9);
    EXPECT_LT(outcome.again, 0.4);
  }
}

TEST(Loss, IsNotSeenWhereDatagramsOvertakeEachOther) {
  for (const uint64_t round_trip_ns : {2'000'000u, 20'000'000u}) {
    const Link link{round_trip_ns, 0, 10, round_trip_ns / 16};
    EXPECT_LT(run({"dense 8 MiB", {1, 5958}, 2}, 4, link).again, 0.01);
  }
}

// What came in order for long is sent again as soon as it was overtaken; once.
TEST(Loss, IsNotSeenForLongWhereDatagramsBeginToOvertakeEachOther) {
  Wire wire(20261116, 4, {2'000'000, 0});
  wire.step({1, 5958});
  wire.set_jitter(2'000'000 / 16);
  wire.step({1, 512});
  const uint64_t resent = wire.resent();
  for (int i = 0; i < 5; ++i)
    wire.step({1, 5958});
  EXPECT_LE(wire.resent() - resent, 20u);  // of 120,000
}

// What comes back 50 us after it was sent again was not swapped where a round trip is shorter.
TEST(Loss, IsNotTakenForASwapOnTheShortestPaths) {
  const Load load{"dense 256 KiB", {1, 187}, 60};
  for (const uint64_t round_trip_ns : {10'000u, 40'000u}) {
    const double none = run(load, 4, {round_trip_ns, 0}).seconds;
    const double lossy = run(load, 4, {round_trip_ns, 0.01}).seconds;
    EXPECT_GT(none / lossy, 0.6) << round_trip_ns;
  }
}

// A window of four workers takes such an aggregator two milliseconds, which its path does not.
constexpr Link kBusy{100'000, 0, 10, 0, 500}, kBusyAndLossy{100'000, 0.01, 10, 0, 500};

TEST(Loss, IsHardlySeenWhereTheAggregatorHasItsCoreForHalfTheTime) {
  for (const uint64_t away_ns : {1'000'000u, 3'000'000u}) {
    Link link = kBusy;
    link.away_ns = away_ns;
    EXPECT_LT(run({"dense 4 MiB", {1, 2979}, 3}, 4, link).again, 0.02);
  }
}

// Of all that is lost every worker sends its part again, and often once more while the one that
// lost a result is a turn behind. More would be work for the one that all of them wait for.
TEST(Loss, MakesABusyAggregatorLittleWork) {
  const Load load{"dense 8 MiB", {1, 5958}, 2};
  const Outcome none = run(load, 4, kBusy), lossy = run(load, 4, kBusyAndLossy);
  std::printf("1 %% loss: sent again %.3f, goodput %.2f\n", lossy.again,
              none.seconds / lossy.seconds);
  EXPECT_LT(lossy.again, 0.12);
  EXPECT_GT(none.seconds / lossy.seconds, 0.8);
}

// Workers sent the lowest of what each of them had read at a time, so one slot that was behind put
// them in other orders, and whatever it brought looked overtaken.
TEST(Loss, IsSeenOnceWhereWorkersReadSeveralResultsAtATime) {
  Link link{200'000, 0.001, 10, 0, 1000};
  link.nap_ns = 150'000;
  EXPECT_LT(run({"dense 32 MiB", {1, 23831}, 2}, 2, link).again, 0.008);
}

// A worker that lost a result sends its slot's next chunk after the others did, and it is complete
// at once: it comes back before what this worker sent earlier, of which nothing was lost.
TEST(Loss, IsNotSeenInAllThatASlotOvertakesWhoseResultWasLost) {
  Link link{200'000, 0.01, 10, 0, 1000};
  link.nap_ns = 1'000'000;
  EXPECT_LT(run({"dense 16 MiB", {1, 11900}, 2}, 2, link).again, 0.08);
}

// What is asked for again before it can come back is never at its first try, by which round trips
// are measured.
TEST(Loss, IsNotSeenForLongWhereAPathBecomesLonger) {
  Wire wire(20261116, 2, {100'000, 0});
  wire.step({64});
  wire.set_round_trip(2'000'000);
  for (int i = 0; i < 10; ++i)
    wire.step({64});
  const uint64_t resent = wire.resent();
  for (int i = 0; i < 10; ++i)
    wire.step({64});
  EXPECT_EQ(wire.resent(), resent);
}

TEST(Loss, IsNotSeenInAWindowBecauseOneChunkWaitedLong) {
  Wire wire(20261116, 2, {100'000, 0});
  wire.set_lag(1, 1'300'000);
  wire.step({1});
  wire.set_lag(1, 0);
  wire.set_round_trip(400'000);
  const uint64_t resent = wire.resent();
  wire.step({64});
  EXPECT_LE(wire.resent() - resent, 2u * 8);
}

}  // namespace
}  // namespace addend::service_client
