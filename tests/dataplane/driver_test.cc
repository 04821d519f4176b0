// SPDX-License-Identifier: Apache-2.0
// The server's data plane and the driver's program, one job between them:
// whatever passes from one to the other, together they are the state machine.
// Through the kernel's test run, so the program is the one that would run in a
// driver; skipped, with the reason, where this process may not load it or the
// kernel is too old.
#include <deque>

#include "gtest/gtest.h"
#include "service/data_plane.h"
#include "tests/golden/trace.h"
#include "tests/support/random_job.h"

namespace addend::testing_support {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint32_t operator()(uint32_t range) {
    return addend_reduce32(static_cast<uint32_t>(addend_random(seed_, next_++) >> 32), range);
  }

 private:
  uint64_t seed_, next_ = 0;
};

// A job of the server and the driver, seen as one machine.
class SharedMachine {
 public:
  explicit SharedMachine(const aggregate::SlotsOptions& options)
      : trace_(trace_of(options)), player_(trace_, *loaded_driver()), keys_(keys_of(trace_)) {}

  void set_table(uint32_t number, const aggregate::Table& table) {
    player_.set_table(number, table);
  }

  aggregate::Outcome handle(const Packet& packet, uint64_t now_ns) {
    const aggregate::Counters before = player_.counters();
    const Response response =
        player_.play({Event::Kind::kIn, now_ns, packet.header.worker, frame(packet)});
    aggregate::Outcome outcome{response.refusal, {}};
    if (response.out.empty()) return outcome;
    EXPECT_EQ(response.out.size(), 1u);
    // Of a job with one worker it does not show whom a reply is meant for.
    const aggregate::Counters after = player_.counters();
    const bool closed = after.complete + after.partial > before.complete + before.partial ||
                        response.refusal == ADDEND_REFUSAL_MISMATCH;
    EXPECT_TRUE(response.out[0].everyone == closed || trace_.job.world == 1);
    outcome.reply = keep(response.out[0].frame);
    outcome.reply.audience = closed ? aggregate::Audience::kEveryone : aggregate::Audience::kSender;
    return outcome;
  }

  bool expire(uint64_t now_ns, aggregate::Reply& reply) {
    if (due_.empty() && !expired_) {
      const Response response = player_.play({Event::Kind::kExpire, now_ns, 0, {}});
      for (const Response::Out& out : response.out)
        due_.push_back(out.frame);
    }
    expired_ = !due_.empty();
    if (due_.empty()) return false;
    reply = keep(due_.front());
    reply.audience = aggregate::Audience::kEveryone;
    due_.pop_front();
    return true;
  }

  aggregate::Counters counters() const { return player_.counters(); }
  const PlanePlayer& player() const { return player_; }
  PlanePlayer& player() { return player_; }
  Datagram frame(const Packet& packet) const {
    return tagged_frame(packet.header, packet.payload, keys_.workers[packet.header.worker]);
  }

 private:
  static Trace trace_of(const aggregate::SlotsOptions& options) {
    Trace trace;
    trace.job = options;
    trace.secret.assign(auth::Secret::kBytes, 17);
    return trace;
  }
  // Authentic, or it does not count.
  aggregate::Reply keep(const Datagram& frame) {
    kept_ = frame;
    aggregate::Reply reply;
    reply.header = addend_frame_read(kept_.data());
    reply.payload = std::span(kept_).subspan(ADDEND_FRAME_HEADER_BYTES);
    EXPECT_EQ(tagged_frame(reply.header, reply.payload, keys_.result), frame);
    return reply;
  }

  Trace trace_;
  PlanePlayer player_;
  TraceKeys keys_;
  Datagram kept_;
  std::deque<Datagram> due_;
  bool expired_ = false;
};

class Driver : public ::testing::Test {
 protected:
  void SetUp() override {
    if (loaded_driver()) return;
    ASSERT_FALSE(must_load()) << loaded_driver().error().message;
    GTEST_SKIP() << loaded_driver().error().message;
  }
};

TEST(Kernel, BeforeLinux515IsRefusedByName) {
  for (const char* release : {"5.15.0", "5.15.0-105-generic", "5.16-rc1", "6.1.0-56-amd64", "10.0"})
    EXPECT_TRUE(dataplane::check_kernel(release)) << release;
  for (const char* release :
       {"5.14.21", "5.10.0-46-amd64", "5.9", "4.19.0", "2.6.32", "", "unknown"}) {
    const Status status = dataplane::check_kernel(release);
    ASSERT_FALSE(status) << release;
    EXPECT_EQ(status.error().code, Errc::kUnsupported);
    EXPECT_EQ(status.error().message,
              std::string("the XDP data plane needs Linux 5.15 or later, this is ") + release);
  }
}

TEST_F(Driver, EveryAnswerIsTheReferences) {
  uint64_t taken = 0, complete = 0, partial = 0, answered = 0, stale = 0, late = 0, duplicate = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SlotsAgainstReference<Random, SharedMachine> model{Random(seed)};
    for (int event = 0; event < 150; ++event)
      ASSERT_TRUE(model.step()) << "seed " << seed << " event " << event;
    ASSERT_EQ(model.machine().player().wrong(), "") << "seed " << seed;
    taken += model.machine().player().taken_by_driver();
    const aggregate::Counters counters = model.machine().counters();
    complete += counters.complete;
    partial += counters.partial;
    answered += counters.answered;
    stale += counters.refused[ADDEND_REFUSAL_TURN];
    late += counters.refused[ADDEND_REFUSAL_LATE];
    duplicate += counters.refused[ADDEND_REFUSAL_DUPLICATE];
  }
  RecordProperty("taken", std::to_string(taken));
  EXPECT_GT(taken, 50000u);  // floats and narrow sums are the server's
  EXPECT_GT(complete, 15000u);
  EXPECT_GT(partial, 300u);
  EXPECT_GT(answered, 3000u);
  EXPECT_GT(stale, 30000u);
  EXPECT_GT(late, 30u);
  EXPECT_GT(duplicate, 3000u);
}

// Any bits in lanes, in payloads of any length that an operation has.
TEST_F(Driver, EveryOperationFoldsLikeTheReferenceAtEveryLength) {
  Random random(11);
  aggregate::SlotsOptions options;
  options.epoch = 3;
  options.boot = 4;
  options.world = 3;
  options.slots = 1;
  options.payload_bytes = ADDEND_XDP_PAYLOAD_BYTES;
  options.ops = kAllOps;
  SharedMachine machine(options);
  ReferenceSlots reference(options);
  aggregate::Table table;
  for (uint16_t& entry : table)
    entry = static_cast<uint16_t>(random(1u << 16));
  machine.set_table(5, table);
  reference.set_table(5, table);
  uint32_t turn = 0;
  uint64_t taken = 0;
  for (uint32_t op = ADDEND_OP_SUM_I32; op < ADDEND_OP_NARROW_SUM_1_4; ++op) {
    const uint32_t lane = addend_op_lane_bytes(static_cast<addend_op>(op));
    const uint32_t longest =
        ADDEND_XDP_PAYLOAD_BYTES / addend_frame_sum_length(static_cast<uint8_t>(op), 1);
    for (uint32_t n = 0; n < 120; ++n) {
      uint32_t length = n < 80 ? (n + 1) * lane : (1 + random(longest / lane)) * lane;
      if (n == 119) length = longest / lane * lane;
      for (uint32_t worker = 0; worker < options.world; ++worker) {
        std::vector<uint8_t> payload(length);
        for (uint8_t& byte : payload)
          byte = static_cast<uint8_t>(random(256));
        Packet packet =
            contribution(options, worker, 0, turn, static_cast<Op>(op), std::move(payload));
        if (addend_frame_has_table(static_cast<uint8_t>(op))) packet.header.flags = 5 << 4;
        const aggregate::Outcome outcome = machine.handle(packet, turn);
        const ReferenceSlots::Answer answer = reference.handle(packet, turn);
        ASSERT_EQ(outcome.refusal, answer.refusal);
        ASSERT_TRUE(same(outcome.reply, answer)) << "op " << op << " length " << length;
      }
      ++turn;
      taken += options.world;
    }
  }
  EXPECT_EQ(machine.player().wrong(), "");
  EXPECT_EQ(machine.player().taken_by_driver(), taken);
}

Packet small(const aggregate::SlotsOptions& options, uint32_t worker, uint32_t turn, Op op) {
  return contribution(options, worker, 0, turn, op, {1, 0, 0, 0, 2, 0, 0, 0});
}

aggregate::SlotsOptions two_workers() {
  aggregate::SlotsOptions options;
  options.epoch = 9;
  options.boot = 4;
  options.world = 2;
  options.slots = 2;
  options.payload_bytes = 64;
  options.ops = kAllOps;
  return options;
}

TEST_F(Driver, ASlotMovesWithItsTurnsBothWays) {
  const aggregate::SlotsOptions options = two_workers();
  SharedMachine machine(options);
  uint64_t taken = 0;
  for (uint32_t turn = 0; turn < 20; ++turn) {
    const bool floats = turn / 3 % 2 == 1;
    const Op op = floats ? Op::kSumF32 : Op::kSumI32;
    EXPECT_EQ(machine.handle(small(options, turn % 2, turn, op), 0).reply.audience,
              aggregate::Audience::kNobody);
    EXPECT_EQ(machine.handle(small(options, 1 - turn % 2, turn, op), 0).reply.audience,
              aggregate::Audience::kEveryone);
    // Whoever has the slot answers for the turn before, too.
    if (turn > 0) {
      const Op before = (turn - 1) / 3 % 2 == 1 ? Op::kSumF32 : Op::kSumI32;
      EXPECT_EQ(machine.handle(small(options, 0, turn - 1, before), 0).reply.header.turn, turn - 1);
    }
    if (!floats) taken += 2;
  }
  EXPECT_GE(machine.player().taken_by_driver(), taken);
  EXPECT_EQ(machine.counters().complete, 20u);
}

TEST_F(Driver, AForgeryIsCountedWhereItArrives) {
  const aggregate::SlotsOptions options = two_workers();
  SharedMachine machine(options);
  Packet packet = small(options, 0, 0, Op::kSumI32);
  PlanePlayer& player = machine.player();
  Datagram frame(packet.bytes(), 0);
  addend_frame_write(packet.header, frame.data());
  EXPECT_EQ(player.play({Event::Kind::kIn, 0, 0, frame}).refusal, ADDEND_REFUSAL_TAG);
  EXPECT_EQ(player.play({Event::Kind::kIn, 0, 1, frame}).refusal, ADDEND_REFUSAL_SOURCE);
  EXPECT_EQ(player.taken_by_driver(), 2u);
}

// The program's end of a job, without the server's.
struct Alone {
  explicit Alone(uint32_t packets_per_s)
      : driver(*loaded_driver()), wire(driver, address(0), *net::resolve("10.0.0.2", 0)) {
    Trace trace;
    trace.job = options;
    trace.secret.assign(auth::Secret::kBytes, 17);
    keys = keys_of(trace);
    part = std::move(driver->jobs().add({options,
                                         keys.workers,
                                         &keys.result,
                                         std::vector{address(0), address(1)},
                                         packets_per_s,
                                         {{0, options.slots, DriverWire::kServerPort}}})[0]);
    part->give_all(*aggregate::Slots::create(options));
  }
  static net::Address address(uint32_t worker) {
    return *net::resolve("10.0.0.1", static_cast<uint16_t>(7000 + worker));
  }
  addend_xdp_job& shared() {
    addend_xdp_job* job = driver->memory().jobs;
    while (job->epoch != options.epoch)
      ++job;
    return *job;
  }
  addend_xdp_slot& slot() { return driver->memory().slots[shared().first]; }
  Datagram frame(uint32_t worker, uint32_t turn) const {
    const Packet packet = small(options, worker, turn, Op::kSumI32);
    return tagged_frame(packet.header, packet.payload, keys.workers[worker]);
  }
  DriverWire::Outcome::Kind send(uint32_t worker, uint32_t turn) {
    return wire.send(static_cast<uint16_t>(7000 + worker), frame(worker, turn), 0).kind;
  }

  aggregate::SlotsOptions options = two_workers();
  std::shared_ptr<dataplane::Driver> driver;
  DriverWire wire;
  TraceKeys keys;
  std::unique_ptr<dataplane::DriverPart> part;
};
using Kind = DriverWire::Outcome::Kind;

TEST_F(Driver, AFramePassesWhileItsSlotIsLocked) {
  Alone job(0);
  job.slot().lock = 1;
  EXPECT_EQ(job.send(0, 0), Kind::kPassed);
  job.slot().lock = 0;
  EXPECT_EQ(job.send(0, 0), Kind::kDropped);
  EXPECT_EQ(job.part->counters().counters.folded, 1u);
}

TEST_F(Driver, AFramePassesThatIsOfAnotherThreadsSlotsOrOfAJobThatIsHeld) {
  Alone job(0);
  job.slot().port = htons(DriverWire::kServerPort + 1);
  EXPECT_EQ(job.send(0, 0), Kind::kPassed);
  job.slot().port = htons(DriverWire::kServerPort);
  job.part->hold();
  EXPECT_EQ(job.send(0, 0), Kind::kPassed);
  job.part->release();
  EXPECT_EQ(job.send(0, 0), Kind::kDropped);
}

TEST_F(Driver, AFrameThatWaitedForItsSlotIsNotFoldedIntoAnotherJobs) {
  Alone job(0);
  job.slot().epoch ^= 1;
  EXPECT_EQ(job.send(0, 0), Kind::kPassed);
}

TEST_F(Driver, ATurnIsNotClosedWhereAWorkerCannotBeReached) {
  Alone job(0);
  EXPECT_EQ(job.send(0, 0), Kind::kDropped);
  job.shared().paths = 0;  // as if worker 0 had come by another interface
  EXPECT_EQ(job.send(1, 0), Kind::kPassed);
  EXPECT_EQ(job.send(0, 0), Kind::kDropped);  // a duplicate, which shows the way
  EXPECT_EQ(job.send(1, 0), Kind::kToAll);
}

TEST_F(Driver, AFrameOfAnotherBootOrOfAnEpochThatIsOverPasses) {
  Alone job(0);
  addend_xdp_job& shared = job.shared();
  shared.boot ^= 1;
  EXPECT_EQ(job.send(0, 0), Kind::kPassed);
  shared.boot ^= 1;
  shared.epoch ^= 1;  // as if another job had come to its place just now
  EXPECT_EQ(job.send(0, 0), Kind::kPassed);
  shared.epoch ^= 1;
  EXPECT_EQ(job.send(0, 0), Kind::kDropped);
  job.part.reset();
  EXPECT_EQ(job.send(1, 0), Kind::kPassed);
}

TEST_F(Driver, OtherPacketsPass) {
  Alone job(0);
  const std::vector<uint8_t> plain = job.wire.wrap(7000, job.frame(0, 0));
  const auto with = [&](std::size_t at, uint8_t byte) {
    std::vector<uint8_t> packet = plain;
    packet[at] = byte;
    return packet;
  };
  std::vector<uint8_t> tagged = plain;
  const uint8_t vlan[] = {0x81, 0, 0, 7};
  tagged.insert(tagged.begin() + 12, std::begin(vlan), std::end(vlan));
  const std::pair<const char*, std::vector<uint8_t>> others[] = {
      {"VLAN", tagged},
      {"ARP", with(13, 0x06)},
      {"IP options", with(14, 0x46)},
      {"the first fragment", with(20, 0x20)},
      {"another fragment", with(21, 1)},
      {"ICMP", with(23, 1)},
      {"TCP", with(23, 6)},
      {"another length", with(39, static_cast<uint8_t>(plain[39] + 1))},
      {"another magic", with(42, 0)},
      {"another version", with(43, 99)},
      {"a result", with(44, ADDEND_FRAME_RESULT)},
      {"half a header", {plain.begin(), plain.begin() + 40}},
      {"no frame", job.wire.wrap(7000, Datagram(12, ADDEND_FRAME_MAGIC))}};
  for (const auto& [name, packet] : others)
    EXPECT_TRUE(job.wire.passes(packet)) << name;
  EXPECT_EQ(job.part->counters().packets, 0u);
  EXPECT_EQ(job.send(0, 0), Kind::kDropped);  // the plain one is taken
}

TEST_F(Driver, AWorkerGetsNoMoreThanItsRate) {
  Alone job(1000);
  for (int i = 0; i < 400; ++i)
    job.send(0, 0);
  EXPECT_GT(job.part->counters().counters.refused[ADDEND_REFUSAL_RATE], 0u);
  EXPECT_GE(job.part->counters().counters.refused[ADDEND_REFUSAL_DUPLICATE], 99u);
  EXPECT_EQ(job.send(1, 0), Kind::kToAll);
}

}  // namespace
}  // namespace addend::testing_support
