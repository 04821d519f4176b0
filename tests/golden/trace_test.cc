// SPDX-License-Identifier: Apache-2.0
// The packet traces of traces/, replayed byte for byte: frames that come in, and what an aggregator
// must count and answer. Any other data plane can replay the same files. `--regenerate` writes them
// anew; README.md says when that may be.
#include "tests/golden/trace.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <set>

#include "gtest/gtest.h"
#include "wire/half.h"

namespace addend::testing_support {
namespace {

namespace fs = std::filesystem;

const fs::path kTraces = fs::path(ADDEND_GOLDEN_DIR) / "traces";
// Of the scenes that are older than narrow sums, which have scenes of their own.
constexpr uint32_t kWholeOps = (1u << ADDEND_OP_NARROW_SUM_1_4) - 1;
constexpr uint32_t kAllOps = (1u << ADDEND_OP_COUNT) - 1;

// --- What the traces are made of

/// A trace under construction. Frames are authentic unless bent.
class Scene {
 public:
  explicit Scene(std::vector<std::string> comments, uint32_t world = 3) {
    trace_.comments = std::move(comments);
    trace_.job.epoch = 0x0A0B0C0D;
    trace_.job.boot = 0x51525354;
    trace_.job.world = world;
    trace_.job.slots = 4;
    trace_.job.payload_bytes = 64;
    trace_.job.ops = kWholeOps;
    trace_.secret.resize(auth::Secret::kBytes);
    for (std::size_t i = 0; i < trace_.secret.size(); ++i)
      trace_.secret[i] = static_cast<uint8_t>(i * 7 + 1);
  }
  aggregate::SlotsOptions& job() { return trace_.job; }
  void table(uint32_t number, const aggregate::Table& table) { trace_.tables[number] = table; }

  using Bend = std::function<void(Packet&)>;
  /// A contribution; `bend` changes it before it is tagged.
  Scene& in(uint32_t worker, uint32_t slot, uint32_t turn, Op op, Datagram payload,
            const Bend& bend = {}) {
    trace_.events.push_back({Event::Kind::kIn, now_ += 1000, worker,
                             frame(worker, slot, turn, op, std::move(payload), bend)});
    return *this;
  }
  Scene& in(uint32_t worker, uint32_t slot, uint32_t turn, int32_t value, const Bend& bend = {}) {
    return in(worker, slot, turn, Op::kSumI32, lanes<int32_t>({value, -value}), bend);
  }
  Scene& raw(uint32_t source, Datagram datagram) {
    trace_.events.push_back({Event::Kind::kIn, now_ += 1000, source, std::move(datagram)});
    return *this;
  }
  /// The job is a leaf's.
  void upstream(UpstreamJob job) {
    trace_.job.relays = true;
    job.secret = trace_.secret;
    for (uint8_t& byte : job.secret)
      byte = static_cast<uint8_t>(byte ^ 0x5A);
    trace_.upstream = std::move(job);
  }
  /// A result from the next aggregator.
  Scene& up(uint32_t slot, uint32_t turn, Op op, const Datagram& payload, const Bend& bend = {}) {
    const UpstreamJob& job = *trace_.upstream;
    aggregate::SlotsOptions options;
    options.epoch = job.epoch;
    options.boot = job.boot;
    options.world = job.leaves;
    Packet packet = contribution(options, 0, slot, turn, op, payload);
    packet.header.kind = ADDEND_FRAME_RESULT;
    packet.header.worker = ADDEND_FRAME_EVERYONE;
    packet.header.count = static_cast<uint8_t>(job.leaves);
    packet.header.contributors = (uint64_t{1} << job.leaves) - 1;
    if (bend) bend(packet);
    trace_.events.push_back(
        {Event::Kind::kUp, now_ += 1000, 0,
         tagged_frame(packet.header, packet.payload, keys_of(job.secret, job.leaves).result)});
    return *this;
  }
  Scene& forged_up(uint32_t slot, uint32_t turn, Op op, const Datagram& payload) {
    up(slot, turn, op, payload);
    trace_.events.back().frame.back() ^= 1;
    return *this;
  }
  Scene& wait(uint64_t ns) {
    now_ += ns;
    return *this;
  }
  Scene& expire(uint64_t after_ns) {
    trace_.events.push_back({Event::Kind::kExpire, now_ += after_ns, 0, {}});
    return *this;
  }
  Scene& end(uint32_t worker) {
    trace_.events.push_back({Event::Kind::kEnd, now_ += 1000, worker, {}});
    return *this;
  }
  Datagram frame(uint32_t worker, uint32_t slot, uint32_t turn, Op op, Datagram payload,
                 const Bend& bend = {}) {
    Packet packet = contribution(trace_.job, worker, slot, turn, op, std::move(payload));
    if (bend) bend(packet);
    if (!keys_) keys_ = keys_of(trace_);
    return tagged_frame(packet.header, packet.payload, keys_->workers[worker]);
  }
  template <typename T>
  static Datagram lanes(std::initializer_list<T> values) {
    Datagram bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.begin(), bytes.size());
    return bytes;
  }
  Trace take() { return std::move(trace_); }

 private:
  Trace trace_;
  std::optional<TraceKeys> keys_;
  uint64_t now_ = 0;
};

Datagram bytes_for(uint32_t worker, uint32_t bytes) { return payload_for(9, worker, 0, 0, bytes); }

const aggregate::Table kTable = {0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 60, 61, 62, 63, 64, 65};
const aggregate::Table kWideTable = {0,   300,  600,  900,  1200, 1500, 1800, 2100,
                                     256, 2700, 3000, 3300, 3600, 3900, 4200, 4500};

Scene::Bend with_table(uint32_t number) {
  return [number](Packet& packet) { packet.header.flags = static_cast<uint8_t>(number << 4); };
}

Trace overwrite() {
  Scene scene({"The first contribution of a turn overwrites what an earlier turn left in its bank:",
               "turns 2 and 3 use the banks of turns 0 and 1."});
  for (uint32_t turn = 0; turn < 4; ++turn) {
    for (uint32_t w = 0; w < 3; ++w)
      scene.in((w + turn) % 3, 1, turn, static_cast<int32_t>((turn + 1) * 1000 + w));
  }
  return scene.take();
}

Trace operations() {
  Scene scene(
      {"One turn for every operation: overwrite, fold, reply. Lanes wrap, saturate nowhere,",
       "and floats are rounded to nearest even at every addition, in the order of arrival."});
  scene.table(0, kTable);
  scene.table(1, kWideTable);
  const auto f16 = [](float x) { return addend_f16_from_f32(x); };
  const auto bf16 = [](float x) { return addend_bf16_from_f32(x); };
  const float x[3][4] = {{1.0f, 0x1p-24f, 3.0e38f, 0x1p-149f},
                         {0x1p-24f, 1.0f, 3.0e38f, 0x1p-149f},
                         {0x1p-24f, 0x1p-24f, -3.0e38f, 5.5f}};
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 0, Op::kSumF32, Scene::lanes({x[w][0], x[w][1], x[w][2], x[w][3]}));
  for (uint32_t w = 0; w < 3; ++w) {
    scene.in(w, 0, 1, Op::kSumBf16,
             Scene::lanes({bf16(x[w][0]), bf16(1.0f / 256), bf16(x[w][2]), bf16(-7.5f)}));
  }
  for (uint32_t w = 0; w < 3; ++w) {
    scene.in(
        w, 0, 2, Op::kSumF16,
        Scene::lanes({f16(2048.0f), f16(w == 0 ? 1.0f : 0x1p-11f), f16(0x1p-24f), f16(-40000)}));
  }
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 3, Op::kSumI32, Scene::lanes<int32_t>({INT32_MAX, -5, 1 << w, INT32_MIN}));
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 4, Op::kSumI64, Scene::lanes<int64_t>({INT64_MAX, -1 - int64_t{w}}));
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 5, Op::kSumU8, {85, static_cast<uint8_t>(w), 0, 1, 2});
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 6, Op::kSumU16, Scene::lanes<uint16_t>({21845, static_cast<uint16_t>(w), 300}));
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 7, Op::kOrU64, Scene::lanes<uint64_t>({uint64_t{1} << (w * 31), 6}));
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 8, Op::kMaxU32, Scene::lanes<uint32_t>({w, 2 - w, 0xFFFFFFFFu >> w, 7}));
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 9, Op::kTableSumU8, {0x10, 0xFE, static_cast<uint8_t>(w)}, with_table(0));
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 0, 10, Op::kTableSumU16, {0x10, 0xFE, static_cast<uint8_t>(w)}, with_table(1));
  return scene.take();
}

Trace narrow_operations() {
  Scene scene({"A turn for every narrow sum: the answer has headers, and lanes of 4 or 8 bits that",
               "do not depend on who came first. Where 24 lanes span too much, they are rounded."});
  scene.job().ops = kAllOps;
  scene.table(0, kTable);
  for (uint32_t turn = 0; turn < ADDEND_OP_COUNT - ADDEND_OP_NARROW_SUM_1_4; ++turn) {
    const auto op = static_cast<Op>(ADDEND_OP_NARROW_SUM_1_4 + turn);
    const auto bytes = static_cast<uint32_t>(op_bytes(op, 24));
    for (uint32_t w = 0; w < 3; ++w)
      scene.in((w + turn) % 3, 0, turn, op, bytes_for((w + turn) % 3, bytes), with_table(0));
  }
  return scene.take();
}

Trace narrow_quorum() {
  Scene scene(
      {"A narrow sum that closes at a quorum is narrowed as it is; who asks again gets the",
       "same bytes. One that has more lanes than a payload has bytes is refused (length)."});
  scene.job().ops = kAllOps;
  scene.table(0, kTable);
  scene.job().patience_ns = 1'000'000;
  scene.job().quorum = 2;
  for (const uint32_t w : {2u, 0u})
    scene.in(w, 0, 0, Op::kNarrowSum44, bytes_for(w, 24), with_table(0));
  scene.expire(1'000'000);
  scene.in(0, 0, 0, Op::kNarrowSum44, bytes_for(0, 24), with_table(0));
  scene.in(0, 1, 0, Op::kNarrowSum44, bytes_for(0, 36), with_table(0));
  scene.in(0, 1, 0, Op::kNarrowSum34, bytes_for(0, 22), with_table(0));  // not eight indices
  return scene.take();
}

Trace full_payload() {
  Scene scene(
      {"A whole payload for an MTU of 1500, in the last slot of a range that begins at 100."}, 2);
  scene.job().payload_bytes = ADDEND_FRAME_PAYLOAD_BYTES;
  scene.job().first_slot = 100;
  scene.in(1, 103, 0, Op::kSumI32, bytes_for(1, ADDEND_FRAME_PAYLOAD_BYTES));
  scene.in(0, 103, 0, Op::kSumI32, bytes_for(0, ADDEND_FRAME_PAYLOAD_BYTES));
  return scene.take();
}

Trace asked_again() {
  Scene scene(
      {"Results get lost: whoever asks again for a complete turn gets the same bytes, he alone,",
       "for as long as a bank keeps the turn. What he sends then is not looked at."});
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 2, 0, 10 + static_cast<int32_t>(w));
  scene.in(1, 2, 0, 11, [](Packet& p) { p.header.flags |= ADDEND_FRAME_RESENT; });
  scene.in(0, 2, 0, 99);
  for (uint32_t w = 0; w < 3; ++w)
    scene.in(w, 2, 1, 20 + static_cast<int32_t>(w));
  scene.in(2, 2, 0, 12).in(2, 2, 1, 22);
  scene.in(0, 2, 2, 30);  // takes the bank of turn 0
  scene.in(2, 2, 0, 12).in(2, 2, 1, 22);
  return scene.take();
}

Trace duplicate() {
  const auto resent = [](Packet& p) { p.header.flags |= ADDEND_FRAME_RESENT; };
  Scene scene(
      {"A contribution that is there already changes nothing and is not answered, flag or no flag;",
       "one that was lost before counts although it is flagged as sent again."});
  scene.in(0, 0, 0, 1).in(0, 0, 0, 1).in(0, 0, 0, 1, resent).in(0, 0, 0, 77);
  scene.in(2, 0, 0, 3, resent).in(0, 0, 0, 1, resent).in(1, 0, 0, 2);
  return scene.take();
}

Trace late_by_many_turns() {
  Scene scene(
      {"Frames of turn 0 and 1 come back 1, 2, 3, ... turns late, and frames of turns to come "
       "early.",
       "A plane that keeps one bit of the turn would add them."});
  for (uint32_t turn = 0; turn < 7; ++turn) {
    scene.in(0, 0, turn, 100);
    for (const uint32_t old : {0u, 1u}) {
      if (turn > old + 1) scene.in(1, 0, old, 1).in(2, 0, old, 1);
    }
    scene.in(1, 0, turn + 1, 5).in(1, 0, turn + 2, 5).in(2, 0, turn + 0x80000000u, 5);
    scene.in(1, 0, turn, 100).in(2, 0, turn, 100);
  }
  scene.in(0, 0, 0xFFFFFFFFu, 1).in(0, 0, 0xFFFFFFFEu, 1);
  return scene.take();
}

Trace independent_slots() {
  Scene scene({"Slots know nothing of each other: slot 3 goes on while slot 0 waits."});
  scene.in(0, 0, 0, 1).in(0, 3, 0, 7).in(1, 3, 0, 7).in(2, 3, 0, 7);
  scene.in(2, 3, 1, Op::kMaxU32, Scene::lanes<uint32_t>({4})).in(1, 0, 0, 2);
  scene.in(0, 3, 1, Op::kMaxU32, Scene::lanes<uint32_t>({9}));
  scene.in(1, 3, 1, Op::kMaxU32, Scene::lanes<uint32_t>({8})).in(2, 0, 0, 3);
  return scene.take();
}

Trace quorum() {
  Scene scene(
      {"Patience 1 ms, quorum 2 of 3: turn 0 closes without worker 1, whose contribution then is",
       "late and answered with the partial result. From then on it is absent: turn 1 is closed",
       "without waiting for it. Turn 2 begins a step (entry), so it is back; turn 3 has one",
       "contributor only, and the epoch ends."});
  scene.job().patience_ns = 1'000'000;
  scene.job().quorum = 2;
  scene.in(0, 0, 0, 1).in(2, 0, 0, 3).expire(900'000).expire(100'000);
  scene.in(1, 0, 0, 2).in(0, 0, 0, 1).expire(5'000'000);
  scene.in(1, 0, 1, 2).in(2, 0, 1, 3).in(0, 0, 1, 1);
  const auto entry = [](Packet& p) { p.header.flags |= ADDEND_FRAME_ENTRY; };
  scene.in(0, 0, 2, 1, entry).in(2, 0, 2, 3, entry).in(1, 0, 2, 2, entry);
  scene.in(2, 0, 3, 3).expire(1'000'000).in(0, 0, 3, 1).expire(1'000'000);
  return scene.take();
}

Trace timeout() {
  Scene scene(
      {"Patience without a quorum: the epoch ends for all and names the first worker that is "
       "missing.",
       "Slot 1 opened later, so its patience is not over yet."});
  scene.job().patience_ns = 1'000'000;
  scene.in(2, 0, 0, 3).in(0, 0, 0, 1).in(1, 1, 0, 2).expire(997'000).expire(1'000);
  scene.in(1, 0, 0, 2).in(1, 1, 0, 2).expire(9'000'000);
  return scene.take();
}

Trace mismatch(const char* what, const Scene::Bend& bend, Op op, Datagram payload) {
  Scene scene(
      {std::string("Another ") + what + " than the first contributor's ends the epoch, naming",
       "the sender; from then on every contribution is answered with that notice."});
  scene.table(0, kTable);
  scene.table(1, kTable);
  const auto first = [&](Packet& p) { (void)p; };
  scene.in(0, 0, 0, Op::kTableSumU8, {0x21, 0x43}, first);
  scene.in(1, 0, 0, op, std::move(payload), bend);
  scene.in(2, 0, 0, Op::kTableSumU8, {0x21, 0x43}).in(0, 3, 0, 5);
  return scene.take();
}

Trace ended() {
  Scene scene(
      {"Worker 1 left (its control connection broke): a notice to all, and one to whoever goes on.",
       "Frames that are refused before get none."});
  scene.in(0, 0, 0, 1).end(1).in(2, 0, 0, 3).in(0, 0, 0, 1);
  scene.in(0, 0, 0, 1, [](Packet& p) { p.header.boot ^= 1; });
  scene.raw(0, Datagram(12, 0xAD));
  return scene.take();
}

Trace refusals() {
  Scene scene(
      {"Frames that change nothing and are not answered, by reason. Between them slot 0 collects",
       "a sum that none of them may touch."});
  scene.job().ops = kWholeOps & ~(1u << ADDEND_OP_SUM_I64);
  scene.table(1, kTable);
  scene.in(0, 0, 0, 1);
  const Datagram good = scene.frame(1, 0, 0, Op::kSumI32, Scene::lanes<int32_t>({2, -2}));
  const auto cut = [&](std::size_t bytes) {
    Datagram shorter = good;
    shorter.resize(bytes);
    return shorter;
  };
  scene.raw(1, {}).raw(1, cut(1)).raw(1, cut(39)).raw(1, cut(40)).raw(1, cut(44));
  Datagram longer = good;
  longer.resize(good.size() + 4);
  scene.raw(1, longer);
  using Change = std::function<void(addend_frame_header&)>;
  const std::vector<Change> changes = {
      [](auto& h) { h.magic = 0xAC; },
      [](auto& h) { h.version = 2; },
      [](auto& h) { h.kind = ADDEND_FRAME_RESULT; },
      [](auto& h) { h.kind = ADDEND_FRAME_NOTICE; },
      [](auto& h) { h.kind = 0; },
      [](auto& h) { h.flags = ADDEND_FRAME_BIG_ENDIAN; },
      [](auto& h) { h.flags = ADDEND_FRAME_PARTIAL; },
      [](auto& h) { h.op = ADDEND_OP_NARROW_SUM_1_4; },  // not allowed in this job
      [](auto& h) { h.op = 255; },
      [](auto& h) { h.flags = 1 << ADDEND_FRAME_TABLE_SHIFT; },  // of a sum without table
      [](auto& h) { h.op = ADDEND_OP_SUM_I64; },                 // not allowed in this job
      [](auto& h) { h.op = ADDEND_OP_TABLE_SUM_U8; },            // table 0 is unknown
      [](auto& h) { h.length = 4; },
      [](auto& h) { h.world = 0; },
      [](auto& h) { h.world = 65; },
      [](auto& h) { h.world = 4; },
      [](auto& h) { h.worker = 3; },
      [](auto& h) { h.count = 2; },
      [](auto& h) { h.count = 0; },
      [](auto& h) { h.contributors = 1; },
      [](auto& h) { h.contributors = 3; },
      [](auto& h) { h.epoch ^= 1; },
      [](auto& h) { h.epoch = 0; },
      [](auto& h) { h.boot ^= 0x100; },
      [](auto& h) { h.slot = 4; },
      [](auto& h) { h.slot = 0xFFFF; },
      [](auto& h) { h.turn = 1; },
      [](auto& h) { h.turn = 2; },
  };
  for (const Change& change : changes) {
    scene.in(1, 0, 0, 2, [&](Packet& packet) { change(packet.header); });
  }
  // Not whole lanes; nothing; more than the job's payload; a table sum that would be.
  scene.in(1, 0, 0, Op::kSumI32, {1, 2, 3, 4, 5, 6});
  scene.in(1, 0, 0, Op::kSumI32, {});
  scene.in(1, 0, 0, Op::kSumI32, Datagram(68, 1));
  scene.in(1, 0, 0, Op::kTableSumU16, Datagram(17, 1),
           [](Packet& p) { p.header.flags = 1 << ADDEND_FRAME_TABLE_SHIFT; });
  // Of the right bytes from the wrong places, and of wrong bytes.
  scene.raw(kStranger, good).raw(2, good);
  for (const std::size_t at : {3ul, 11ul, 39ul, 40ul, good.size() - 1}) {
    Datagram forged = good;
    forged[at] = static_cast<uint8_t>(forged[at] ^ (at == 3 ? 4 : 1));
    scene.raw(1, forged);
  }
  scene.raw(1, good).in(2, 0, 0, 3);
  return scene.take();
}

Trace leaf() {
  Scene scene(
      {"A leaf, worker 1 of 2 at the next aggregator. Its complete turns go up, table sums as "
       "plain",
       "sums; meanwhile duplicates are not answered, and after a millisecond sent up again. What",
       "comes down is the result, once: copies, other shapes and forgeries change nothing."},
      2);
  scene.upstream({0x21222324, 0x61626364, 1, 2});
  scene.table(0, kWideTable);
  scene.in(0, 1, 0, 5).in(1, 1, 0, 6).in(0, 1, 0, 5).in(0, 1, 1, 7);
  scene.wait(1'000'000).in(1, 1, 0, 6).in(0, 1, 0, 5);
  const Datagram sum = Scene::lanes<int32_t>({100, -100});
  scene.up(1, 0, Op::kSumI32, Scene::lanes<int32_t>({1}));
  scene.up(1, 0, Op::kSumU8, sum);
  scene.up(1, 0, Op::kSumI32, sum, [](Packet& p) { p.header.flags = ADDEND_FRAME_PARTIAL; });
  scene.forged_up(1, 0, Op::kSumI32, sum);
  scene.up(1, 2, Op::kSumI32, sum).up(7, 0, Op::kSumI32, sum);
  scene.up(1, 0, Op::kSumI32, sum).up(1, 0, Op::kSumI32, sum);
  scene.in(0, 1, 0, 5).in(0, 1, 1, 7).in(1, 1, 1, 8);
  scene.up(1, 0, Op::kSumI32, sum).up(1, 1, Op::kSumI32, Scene::lanes<int32_t>({200, -200}));
  for (uint32_t w = 0; w < 2; ++w)
    scene.in(w, 0, 0, Op::kTableSumU16, {0x10, 0xFE});
  scene.up(0, 0, Op::kSumU16, Scene::lanes<uint16_t>({1, 2, 3, 4}));
  scene.in(0, 2, 0, 1).end(1).up(1, 1, Op::kSumI32, sum);
  return scene.take();
}

Trace narrow_leaf() {
  Scene scene(
      {"A leaf sends narrow sums up as they are before that, so as sum_u16; what comes down",
       "is the sum of all, which every leaf narrows alike."},
      2);
  scene.job().ops = kAllOps;
  scene.upstream({0x21222324, 0x61626364, 1, 2});
  scene.table(0, kTable);
  for (uint32_t w = 0; w < 2; ++w)
    scene.in(w, 0, 0, Op::kNarrowSum44, {0x10, 0xFE, 0x73, 0x00}, with_table(0));
  scene.up(0, 0, Op::kNarrowSum44, Datagram(9, 0));
  scene.up(0, 0, Op::kSumU16, Scene::lanes<uint16_t>({100, 101, 102, 103, 104, 120, 160, 131}));
  scene.in(1, 0, 0, Op::kNarrowSum44, {0x10, 0xFE, 0x73, 0x00}, with_table(0));
  scene.in(1, 0, 1, Op::kNarrowSum44, bytes_for(1, 20), with_table(0));  // 80 bytes to send on
  return scene.take();
}

std::map<std::string, Trace> scenes() {
  const auto table = [](Packet& p) { p.header.flags = 1 << ADDEND_FRAME_TABLE_SHIFT; };
  std::map<std::string, Trace> all;
  all["overwrite"] = overwrite();
  all["operations"] = operations();
  all["narrow_operations"] = narrow_operations();
  all["narrow_quorum"] = narrow_quorum();
  all["full_payload"] = full_payload();
  all["asked_again"] = asked_again();
  all["duplicate"] = duplicate();
  all["late_by_many_turns"] = late_by_many_turns();
  all["independent_slots"] = independent_slots();
  all["quorum"] = quorum();
  all["timeout"] = timeout();
  all["mismatch_op"] = mismatch("operation", {}, Op::kSumU8, {1, 2});
  all["mismatch_length"] = mismatch("length", {}, Op::kTableSumU8, {0x21});
  all["mismatch_table"] = mismatch("table", table, Op::kTableSumU8, {0x21, 0x43});
  all["ended"] = ended();
  all["leaf"] = leaf();
  all["narrow_leaf"] = narrow_leaf();
  all["refusals"] = refusals();
  return all;
}

// --- Writing and checking

std::string play(const Trace& trace, TracePlayer& player) {
  std::string text = job_text(trace);
  for (const Event& event : trace.events)
    text += event_text(event) + response_text(player.play(event));
  return text + counters_text(player.counters());
}

void regenerate() {
  fs::create_directories(kTraces);
  for (const auto& [name, trace] : scenes()) {
    PlanePlayer player(trace);
    std::ofstream(kTraces / (name + ".trace")) << play(trace, player);
  }
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::map<std::string, std::string> stored() {
  std::map<std::string, std::string> texts;
  for (const auto& entry : fs::directory_iterator(kTraces)) {
    if (entry.path().extension() == ".trace")
      texts[entry.path().stem().string()] = read_text(entry.path());
  }
  return texts;
}

TEST(Trace, TheDataPlaneDoesWhatIsStored) {
  const auto texts = stored();
  EXPECT_EQ(texts.size(), scenes().size());
  for (const auto& [name, text] : texts) {
    const auto trace = parse_trace(text);
    ASSERT_TRUE(trace) << name;
    PlanePlayer player(*trace);
    EXPECT_EQ(play(*trace, player), text) << name;
  }
}

TEST(Trace, ServerAndDriverTogetherDoWhatIsStored) {
  auto& driver = loaded_driver();
  if (!driver) {
    ASSERT_FALSE(must_load()) << driver.error().message;
    GTEST_SKIP() << driver.error().message;
  }
  uint64_t taken = 0;
  for (const char* host : {"10.0.0.1", "fd00::1"}) {
    for (const auto& [name, text] : stored()) {
      const auto trace = parse_trace(text);
      ASSERT_TRUE(trace) << name;
      if (trace->upstream) continue;  // a leaf has no driver
      PlanePlayer player(*trace, *driver, host);
      EXPECT_EQ(play(*trace, player), text) << name << " " << host;
      EXPECT_EQ(player.wrong(), "") << name << " " << host;
      taken += player.taken_by_driver();
    }
  }
  // Floats, mismatches and what cannot be authentic are the server's; most of the rest is not.
  EXPECT_GT(taken, 200u);
}

// Lines that say what happened after the event in line `i`.
std::string expectation(const std::vector<std::string>& lines, std::size_t i) {
  std::string text;
  while (++i < lines.size() && lines[i][0] == ' ')
    text += lines[i] + "\n";
  return text;
}

TEST(Trace, TheStateMachineAloneDoesWhatIsStored) {
  for (const auto& [name, text] : stored()) {
    const auto trace = parse_trace(text);
    ASSERT_TRUE(trace) << name;
    std::vector<std::string> lines;
    std::istringstream rest(text);
    for (std::string line; std::getline(rest, line);)
      lines.push_back(line);
    SlotsPlayer player(*trace);
    std::size_t line = 0;
    for (const Event& event : trace->events) {
      while (lines[line].rfind("at ", 0) != 0)
        ++line;
      const std::string expected = expectation(lines, line++);
      // What has no header, or comes from elsewhere, does not get as far as the slots.
      const bool stopped = expected == "  refused truncated\n" ||
                           expected == "  refused source\n" || expected == "  refused tag\n";
      if (!stopped) {
        EXPECT_EQ(response_text(player.play(event)), expected) << name << ": " << lines[line - 1];
      }
    }
  }
}

// The stored frames are the ones that the scenes above describe.
TEST(Trace, TheStoredEventsAreTheScenes) {
  const auto texts = stored();
  for (const auto& [name, trace] : scenes()) {
    ASSERT_EQ(texts.count(name), 1u) << name;
    const auto parsed = parse_trace(texts.at(name));
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(job_text(*parsed), job_text(trace)) << name;
    ASSERT_EQ(parsed->events.size(), trace.events.size()) << name;
    for (std::size_t i = 0; i < trace.events.size(); ++i)
      EXPECT_EQ(event_text(parsed->events[i]), event_text(trace.events[i])) << name;
  }
}

// What the protocol's page promises is in some trace: every refusal but the rate's, which is an
// operator's choice, every operation, every notice.
TEST(Trace, TheTracesVisitEverything) {
  std::set<addend_refusal> refusals;
  std::set<int> ops, notices;
  uint64_t partial = 0, answered = 0, relayed = 0;
  for (const auto& [name, trace] : scenes()) {
    PlanePlayer player(trace);
    for (const Event& event : trace.events) {
      const Response response = player.play(event);
      refusals.insert(response.refusal);
      for (const Response::Out& out : response.out) {
        relayed += out.up ? 1 : 0;
        if (!out.up) (out.frame[2] == ADDEND_FRAME_RESULT ? ops : notices).insert(out.frame[16]);
      }
    }
    partial += player.counters().partial;
    answered += player.counters().answered;
  }
  EXPECT_EQ(refusals.size(), std::size_t{ADDEND_REFUSAL_COUNT} - 1);
  EXPECT_EQ(refusals.count(ADDEND_REFUSAL_RATE), 0u);
  EXPECT_EQ(ops.size(), size_t{ADDEND_OP_COUNT});
  EXPECT_EQ(notices.size(), 3u);
  EXPECT_GT(partial, 0u);
  EXPECT_GT(answered, 0u);
  EXPECT_GT(relayed, 0u);
}

}  // namespace
}  // namespace addend::testing_support

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string(argv[1]) == "--regenerate") {
    addend::testing_support::regenerate();
    std::cout << "wrote " << addend::testing_support::kTraces << "\n";
    return 0;
  }
  return RUN_ALL_TESTS();
}
