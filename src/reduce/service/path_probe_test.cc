// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/path_probe.h"

#include <cstring>
#include <functional>

#include "gtest/gtest.h"
#include "wire/hash.h"

namespace addend::service_client {
namespace {

constexpr uint64_t kMillisecondNs = 1'000'000;

addend_control_probe message(uint32_t threads, uint32_t payload_bytes = 1408) {
  addend_control_probe probe{};
  probe.number = 77;
  probe.boot = 5;
  probe.payload_bytes = payload_bytes;
  probe.threads = threads;
  std::memset(probe.secret, 3, sizeof(probe.secret));
  return probe;
}

// What a data thread sends back, as docs/formats/protocol.md says.
std::vector<uint8_t> echo(std::span<const uint8_t> frame, const addend_control_probe& probe) {
  std::vector<uint8_t> bytes(frame.begin(), frame.end());
  const auto key = auth::FrameKey::create(auth::Secret(probe.secret), probe.payload_bytes);
  addend_frame_header wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  const auto payload = std::span<const uint8_t>(bytes).subspan(sizeof(wire));
  EXPECT_TRUE(key->verify(wire, payload));
  wire.kind = ADDEND_FRAME_ECHO;
  wire.tag = addend_be64(key->tag(wire, payload));
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes;
}

struct Outcome {
  uint32_t payload_bytes;
  uint64_t milliseconds;
};

// A path that carries what `passes` says, both ways, after no time.
Outcome run(const addend_control_probe& asked, const std::function<bool(PathProbe::One)>& passes,
            uint32_t most = 8832, uint32_t refused_by_the_machine = ~0u) {
  PathProbe probe = *PathProbe::create(asked, 1, 2, most);
  uint64_t now = 1;
  while (!probe.done(now)) {
    for (const PathProbe::One& one : probe.collect(now)) {
      const auto frame = probe.frame(one);
      EXPECT_EQ(frame.size(), ADDEND_FRAME_HEADER_BYTES + one.payload_bytes);
      if (one.payload_bytes >= refused_by_the_machine) {
        probe.too_long(one.payload_bytes);
      } else if (passes(one)) {
        probe.receive(echo(frame, asked), now);
      }
    }
    if (probe.done(now)) break;
    now = std::max(now, probe.next_ns());
  }
  return {probe.payload_bytes(), now / kMillisecondNs};
}

TEST(PathProbe, AGoodPathIsKnownAfterOneRoundTrip) {
  for (const uint32_t most : {8u, 504u, 1408u, 8832u}) {
    const Outcome outcome = run(message(3, most), [](PathProbe::One) { return true; });
    EXPECT_EQ(outcome.payload_bytes, most);
    EXPECT_EQ(outcome.milliseconds, 0u);
  }
  EXPECT_EQ(run(
                message(1), [](PathProbe::One) { return true; }, 1000)
                .payload_bytes,
            1000u);
}

TEST(PathProbe, FindsWhatFitsTheUsualTunnels) {
  for (const uint32_t mtu : {1460u, 1420u, 1280u, 576u}) {
    const uint32_t fits = mtu - 88;
    const auto passes = [&](PathProbe::One one) { return one.payload_bytes <= fits; };
    // The path swallows what is too long.
    const Outcome swallowed = run(message(2), passes);
    EXPECT_EQ(swallowed.payload_bytes, fits / 8 * 8) << mtu;
    EXPECT_LT(swallowed.milliseconds, 1300u);
    // This machine's own link is short, and its kernel says so.
    const Outcome told = run(message(2), passes, 8832, fits + 1);
    EXPECT_EQ(told.payload_bytes, fits / 8 * 8) << mtu;
    EXPECT_EQ(told.milliseconds, 0u);
  }
}

TEST(PathProbe, TheSlowestThreadDecidesAndOneThatIsSilentMeansNoPath) {
  const auto narrow = [](PathProbe::One one) {
    return one.thread != 1 || one.payload_bytes < 1200;
  };
  EXPECT_EQ(run(message(3), narrow).payload_bytes, 1192u);
  const Outcome silent = run(message(3), [](PathProbe::One one) { return one.thread != 1; });
  EXPECT_EQ(silent.payload_bytes, 0u);
  EXPECT_LT(silent.milliseconds, 2600u);
}

TEST(PathProbe, LossDoesNotMakeAPathLookShort) {
  uint32_t right = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    uint64_t draws = 0;
    const auto passes = [&](PathProbe::One) { return addend_random(seed, draws++) % 10 != 0; };
    right += run(message(2), passes).payload_bytes == 1408 ? 1 : 0;
  }
  EXPECT_EQ(right, 100u);
}

TEST(PathProbe, AnEchoTellsWhenItsProbeWasSent) {
  const addend_control_probe asked = message(1);
  PathProbe probe = *PathProbe::create(asked, 0, 1, 8832);
  const std::vector<uint8_t> first = echo(probe.frame(probe.collect(1)[1]), asked);
  const uint64_t again = probe.next_ns();
  const std::vector<uint8_t> second = echo(probe.frame(probe.collect(again)[1]), asked);
  EXPECT_EQ(probe.round_trip_ns(), 0u);
  probe.receive(first, again + 8 * kMillisecondNs);
  EXPECT_EQ(probe.round_trip_ns(), again - 1 + 8 * kMillisecondNs);
  probe.receive(second, again + 9 * kMillisecondNs);
  EXPECT_EQ(probe.round_trip_ns(), 9 * kMillisecondNs);
}

TEST(PathProbe, ForgeriesAndGarbageAreNoEchoes) {
  const addend_control_probe asked = message(1);
  PathProbe probe = *PathProbe::create(asked, 0, 1, 8832);
  const PathProbe::One one = probe.collect(1)[0];
  const auto frame = probe.frame(one);
  const std::vector<uint8_t> good = echo(frame, asked);
  probe.receive({}, 1);
  probe.receive(frame, 1);  // a probe is no echo
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{5}, std::size_t{13}, std::size_t{39}, good.size() - 1}) {
    std::vector<uint8_t> bad = good;
    bad[at] ^= 1;
    probe.receive(bad, 1);
  }
  EXPECT_EQ(probe.payload_bytes(), 0u);
  probe.receive(good, 1);
  EXPECT_EQ(probe.payload_bytes(), 1408u);
  EXPECT_TRUE(probe.done(1));
}

TEST(PathProbe, AServerThatAsksForNonsenseIsRefused) {
  EXPECT_FALSE(PathProbe::create(message(0), 0, 1, 1408));
  EXPECT_FALSE(PathProbe::create(message(65), 0, 1, 1408));
  EXPECT_FALSE(PathProbe::create(message(1, 0), 0, 1, 1408));
  EXPECT_FALSE(PathProbe::create(message(1, 9), 0, 1, 1408));
  EXPECT_FALSE(PathProbe::create(message(1, 9000), 0, 1, 1408));
}

}  // namespace
}  // namespace addend::service_client
