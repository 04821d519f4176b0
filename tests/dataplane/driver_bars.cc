// SPDX-License-Identifier: Apache-2.0
// What the driver's program costs, by the kernel's own clock (BPF_PROG_TEST_RUN): authenticated
// contributions of 1408 bytes to a job of four. Twice:
//  * the same contribution folded again and again, as under load, when code, keys and sums are in
//  the
//    caches: a program of a few instructions takes the worker out of its turn, then calls ours.
//    This has the bars.
//  * packets that were never seen before to 512 slots, one system call each: everything is cold,
//  and
//    20 ns are the clock's. Every action is checked.
// Then what packets cost that are as in a driver, with the sending of results (live frames).
// Exit code 1 if a bar does not hold; 0, with the reason, where this process may not load the
// program or the kernel is too old.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bits.h"
#include "tests/golden/trace.h"

namespace {

using namespace addend;                   // NOLINT(google-build-using-namespace): one file
using namespace addend::testing_support;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kWorld = 4, kSlots = 512, kTurns = 20;
constexpr int kRows = 400;  // short ones: some of them nobody disturbs
constexpr uint32_t kTimes = 1000;
constexpr double kShare = 0.99;  // of results that arrive: a veth drops what it has no room for
constexpr uint32_t kPayload = ADDEND_FRAME_PAYLOAD_BYTES;
constexpr std::ptrdiff_t kHeaders = 42 + ADDEND_FRAME_HEADER_BYTES;  // from Ethernet on

struct Costs {
  std::vector<double> first, more, last;  // ns: a turn's first contribution, others, and the last
};

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

int bpf(bpf_cmd command, bpf_attr& attr) {
  return static_cast<int>(syscall(SYS_bpf, command, &attr, sizeof(attr)));
}

net::Descriptor map_of(int program, const std::string& name) {
  uint32_t ids[16] = {};
  bpf_prog_info info{};
  info.nr_map_ids = 16;
  info.map_ids = reinterpret_cast<uint64_t>(ids);
  bpf_attr attr{};
  attr.info = {static_cast<uint32_t>(program), sizeof(info), reinterpret_cast<uint64_t>(&info)};
  if (bpf(BPF_OBJ_GET_INFO_BY_FD, attr) != 0) return net::Descriptor();
  for (uint32_t i = 0; i < info.nr_map_ids; ++i) {
    attr = {};
    attr.map_id = ids[i];
    net::Descriptor map(bpf(BPF_MAP_GET_FD_BY_ID, attr));
    bpf_map_info about{};
    attr = {};
    attr.info = {static_cast<uint32_t>(map.get()), sizeof(about),
                 reinterpret_cast<uint64_t>(&about)};
    if (map && bpf(BPF_OBJ_GET_INFO_BY_FD, attr) == 0 && name == about.name) return map;
  }
  return net::Descriptor();
}

net::Descriptor load_xdp(std::span<const bpf_insn> program) {
  bpf_attr attr{};
  attr.prog_type = BPF_PROG_TYPE_XDP;
  attr.expected_attach_type = BPF_XDP;
  attr.insns = reinterpret_cast<uint64_t>(program.data());
  attr.insn_cnt = static_cast<uint32_t>(program.size());
  attr.license = reinterpret_cast<uint64_t>("Apache-2.0");
  return net::Descriptor(bpf(BPF_PROG_LOAD, attr));
}

/// A program that makes a slot's first bank as if these workers alone had contributed and the
/// packet begin with `head`, and then is ours.
class Again {
 public:
  Again(int program, uint32_t slot, int32_t contributors, std::vector<uint8_t> head = {})
      : slots_(map_of(program, "slots")), contributors_(contributors), head_(std::move(head)) {
    bpf_attr attr{};
    attr.map_type = BPF_MAP_TYPE_PROG_ARRAY;
    attr.key_size = attr.value_size = 4;
    attr.max_entries = 1;
    next_ = net::Descriptor(bpf(BPF_MAP_CREATE, attr));
    const uint32_t zero = 0;
    attr = {};
    attr.map_fd = static_cast<uint32_t>(next_.get());
    attr.key = reinterpret_cast<uint64_t>(&zero);
    attr.value = reinterpret_cast<uint64_t>(&program);
    if (bpf(BPF_MAP_UPDATE_ELEM, attr) == 0) load(slot);
  }
  int program() const { return program_.get(); }

 private:
  void load(uint32_t slot) {
    constexpr std::size_t kBank = offsetof(addend_xdp_slot, banks);
    const auto at = [](std::size_t field) { return static_cast<int16_t>(kBank + field); };
    const bpf_insn kRest{};
    std::vector<bpf_insn> program = {
        {BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0, 0},  // r6 = context
        {BPF_ST | BPF_MEM | BPF_W, 10, 0, -4, static_cast<int32_t>(slot)},
        map(1, slots_),
        kRest,  // r1 = slots
        {BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0},
        {BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -4},  // r2 = &slot
        {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem},
        {BPF_JMP | BPF_JNE | BPF_K, 0, 0, 2, 0},
        {BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_ABORTED},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
        {BPF_ST | BPF_MEM | BPF_DW, 0, 0, at(offsetof(addend_xdp_bank, contributors)),
         contributors_},
        {BPF_ST | BPF_MEM | BPF_B, 0, 0, at(offsetof(addend_xdp_bank, state)), ADDEND_XDP_OPEN}};
    write_head(program);
    const bpf_insn rest[] = {{BPF_ALU64 | BPF_MOV | BPF_X, 1, 6, 0, 0},
                             map(2, next_),
                             kRest,
                             {BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, 0},
                             {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_tail_call},
                             {BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_ABORTED},
                             {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    program.insert(program.end(), std::begin(rest), std::end(rest));
    program_ = load_xdp(program);
  }
  static bpf_insn map(uint8_t reg, const net::Descriptor& fd) {
    return {BPF_LD | BPF_DW | BPF_IMM, static_cast<uint8_t>(reg & 15), BPF_PSEUDO_MAP_FD, 0,
            fd.get()};
  }
  void write_head(std::vector<bpf_insn>& program) const {
    const auto bytes = static_cast<int32_t>(head_.size());
    const bpf_insn look[] = {{BPF_LDX | BPF_MEM | BPF_W, 2, 6, offsetof(xdp_md, data), 0},
                             {BPF_LDX | BPF_MEM | BPF_W, 3, 6, offsetof(xdp_md, data_end), 0},
                             {BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0},
                             {BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, bytes},
                             {BPF_JMP | BPF_JLE | BPF_X, 4, 3, 2, 0},
                             {BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_ABORTED},
                             {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    if (bytes > 0) program.insert(program.end(), std::begin(look), std::end(look));
    for (int16_t at = 0; at + 2 <= bytes; at = static_cast<int16_t>(at + 2)) {
      uint16_t pair = 0;
      std::memcpy(&pair, head_.data() + at, 2);
      program.push_back({BPF_ST | BPF_MEM | BPF_H, 2, 0, at, pair});
    }
  }

  net::Descriptor slots_, next_, program_;
  int32_t contributors_;
  std::vector<uint8_t> head_;
};

/// A link of this process's own, whose far end counts what arrives and drops it.
class Sink {
 public:
  static constexpr const char* kName = "addend";
  Sink() {
    if (unshare(CLONE_NEWNET) != 0 ||
        std::system("ip link add addend type veth peer name sink && ip link set addend up && "
                    "ip link set sink up") != 0) {
      return;
    }
    bpf_attr attr{};
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = 4;
    attr.value_size = 8;
    attr.max_entries = 1;
    count_ = net::Descriptor(bpf(BPF_MAP_CREATE, attr));
    const bpf_insn program[] = {{BPF_ST | BPF_MEM | BPF_W, 10, 0, -4, 0},
                                {BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_FD, 0, count_.get()},
                                {},
                                {BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0},
                                {BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -4},
                                {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem},
                                {BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2, 0},
                                {BPF_ALU64 | BPF_MOV | BPF_K, 1, 0, 0, 1},
                                {BPF_STX | BPF_XADD | BPF_DW, 0, 1, 0, 0},
                                {BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_DROP},
                                {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    program_ = load_xdp(program);
    attr = {};
    attr.link_create.prog_fd = static_cast<uint32_t>(program_.get());
    attr.link_create.target_ifindex = if_nametoindex("sink");
    attr.link_create.attach_type = BPF_XDP;
    attr.link_create.flags = XDP_FLAGS_DRV_MODE;
    link_ = net::Descriptor(bpf(BPF_LINK_CREATE, attr));
  }
  bool works() const { return static_cast<bool>(link_); }
  /// Since there were `before`: the far end takes in what it has, which a second is ample for.
  uint64_t arrived(uint64_t before, uint64_t wanted) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (count() - before < wanted && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    return count() - before;
  }
  uint64_t count() const {
    const uint32_t zero = 0;
    uint64_t value = 0;
    bpf_attr attr{};
    attr.map_fd = static_cast<uint32_t>(count_.get());
    attr.key = reinterpret_cast<uint64_t>(&zero);
    attr.value = reinterpret_cast<uint64_t>(&value);
    bpf(BPF_MAP_LOOKUP_ELEM, attr);
    return value;
  }

 private:
  net::Descriptor count_, program_, link_;
};

struct Job {
  explicit Job(const std::shared_ptr<dataplane::Driver>& driver)
      : wire(driver, address(0), *net::resolve("10.0.0.2", 0)) {
    trace.job.epoch = 77;
    trace.job.boot = 4;
    trace.job.world = kWorld;
    trace.job.slots = kSlots + 1;
    trace.job.payload_bytes = kPayload;
    trace.job.ops = (1u << ADDEND_OP_COUNT) - 1;
    trace.secret.assign(auth::Secret::kBytes, 17);
    keys = keys_of(trace);
    std::vector<net::Address> workers;
    for (uint32_t w = 0; w < kWorld; ++w)
      workers.push_back(address(w));
    part = std::move(driver->jobs().add({trace.job,
                                         keys.workers,
                                         &keys.result,
                                         workers,
                                         0,
                                         {{0, kSlots + 1, DriverWire::kServerPort}}})[0]);
    part->give_all(*aggregate::Slots::create(trace.job));
    part->set_table(0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  }
  static net::Address address(uint32_t worker) {
    return *net::resolve("10.0.0.1", static_cast<uint16_t>(7000 + worker));
  }

  std::vector<uint8_t> frame(uint32_t worker, uint32_t slot, uint32_t turn, Op op) const {
    const uint32_t length = kPayload / addend_frame_sum_length(static_cast<uint8_t>(op), 1);
    const Packet packet =
        contribution(trace.job, worker, slot, turn, op, payload_for(9, worker, slot, turn, length));
    return tagged_frame(packet.header, packet.payload, keys.workers[worker]);
  }

  std::vector<uint8_t> zeros(uint32_t worker, uint32_t turn) const {
    const Packet packet =
        contribution(trace.job, worker, kSlots, turn, Op::kOrU64, std::vector<uint8_t>(kPayload));
    return tagged_frame(packet.header, packet.payload, keys.workers[worker]);
  }

  double run(uint32_t worker, const std::vector<uint8_t>& bytes, uint32_t action) {
    uint32_t done = 0;
    const double ns = wire.time_ns(static_cast<uint16_t>(7000 + worker), bytes, 1, done);
    good = good && done == action;
    return ns;
  }

  // Nanoseconds of a contribution of worker 1 that worker 0 has opened a turn for, in the last
  // slot: the least of several rows. An odd turn follows, so that the next is even again.
  double again(const Again& program, Op op) {
    run(0, frame(0, kSlots, again_turn, op), XDP_DROP);
    double least = 1e9;
    uint32_t action = 0;
    const std::vector<uint8_t> bytes = frame(1, kSlots, again_turn, op);
    const uint64_t before = part->counters().counters.folded;
    for (int row = 0; row < kRows; ++row)
      least = std::min(least, wire.time_ns(7001, bytes, kTimes, action, program.program()));
    good = good && action == XDP_DROP &&
           part->counters().counters.folded == before + uint64_t{kRows} * kTimes;
    for (uint32_t w = 2; w < kWorld; ++w)
      run(w, frame(w, kSlots, again_turn, op), w + 1 == kWorld ? XDP_REDIRECT : XDP_DROP);
    for (uint32_t w = 0; w < kWorld; ++w)
      run(w, frame(w, kSlots, again_turn + 1, op), w + 1 == kWorld ? XDP_REDIRECT : XDP_DROP);
    again_turn += 2;
    return least;
  }

  // Nanoseconds of a contribution of worker 1, in packets as a driver has them, to a turn that
  // these have contributed to; negative where that cannot be measured. Bitmaps of zeros: a result
  // is what came in, but for its headers.
  double live(int program, uint32_t slot, uint64_t contributors) {
    const std::vector<uint8_t> packet = wire.wrap(7001, zeros(1, again_turn));
    const Again again(program, slot, static_cast<int32_t>(contributors),
                      {packet.begin(), packet.begin() + kHeaders});
    run(0, zeros(0, again_turn), XDP_DROP);
    double least = 1e9;
    const uint64_t before = part->counters().counters.folded;
    for (int row = 0; row < kRows && least > 0; ++row)
      least = std::min(least, DriverWire::live_ns(packet, kTimes, again.program()));
    if (least < 0) return least;  // worker 1 was not there, so this turn does not end
    good = good && part->counters().counters.folded == before + uint64_t{kRows} * kTimes;
    for (uint32_t w = 2; w < kWorld && contributors == 1; ++w)
      run(w, zeros(w, again_turn), w + 1 == kWorld ? XDP_REDIRECT : XDP_DROP);
    for (uint32_t w = 0; w < kWorld; ++w)
      run(w, zeros(w, again_turn + 1), w + 1 == kWorld ? XDP_REDIRECT : XDP_DROP);
    again_turn += 2;
    return least;
  }

  // One turn of every slot; worker by worker, as they would come.
  void turn(uint32_t number, Op op, Costs& costs) {
    for (uint32_t w = 0; w < kWorld; ++w) {
      const bool last = w + 1 == kWorld;
      for (uint32_t s = 0; s < kSlots; ++s) {
        const double ns = run(w, frame(w, s, number, op), last ? XDP_REDIRECT : XDP_DROP);
        (w == 0 ? costs.first : last ? costs.last : costs.more).push_back(ns);
      }
    }
  }

  Trace trace;
  TraceKeys keys;
  DriverWire wire;
  std::unique_ptr<dataplane::DriverPart> part;
  uint32_t again_turn = 0;
  bool good = true;
};

// What a contribution costs a core without the test's network: no copy into a packet, but a copy
// for each receiver of a result, its way through a veth and its end there.
bool live_row(Job& job, const Sink& sink, int program, uint32_t slot) {
  const double folded = sink.works() ? job.live(program, slot, 1) : -1;
  if (folded < 0) {
    std::printf("live packets: not run: no veth, or a kernel before 5.18\n");
    return true;
  }
  const uint64_t before = sink.count();
  const double last = job.live(program, slot, low_mask(kWorld) & ~uint64_t{2});
  const uint64_t copies = uint64_t{kRows} * kTimes * kWorld;
  const double share =
      static_cast<double>(sink.arrived(before, copies)) / static_cast<double>(copies);
  const double mean = ((kWorld - 1) * folded + last) / kWorld;
  std::printf(
      "live packets, or_u64: %.0f folded, %.0f the last of a turn with a result to each of "
      "%u; %.0f a packet, %.2f M packets a core and second; %.1f%% of results arrived\n",
      folded, last, kWorld, mean, 1e3 / mean, 100 * share);
  return share >= kShare;
}

}  // namespace

int main() {
  const Sink sink;
  auto loaded = dataplane::Driver::load(sink.works() ? Sink::kName : "lo");
  if (!loaded) {
    std::printf("not run: %s\n", loaded.error().message.c_str());
    return must_load() ? 1 : 0;
  }
  const std::shared_ptr<dataplane::Driver> driver = std::move(*loaded);
  const struct {
    const char* name;
    Op op;
    double bar_ns;  // of a contribution that is folded; 0: none
  } kOps[] = {{"sum_i32", Op::kSumI32, 450},        {"or_u64", Op::kOrU64, 350},
              {"max_u32", Op::kMaxU32, 0},          {"sum_u8", Op::kSumU8, 0},
              {"table_sum_u8", Op::kTableSumU8, 0}, {"table_sum_u16", Op::kTableSumU16, 0}};
  Job job(driver);
  const uint32_t slot = driver->memory().jobs[0].first + kSlots;
  const Again program(driver->program(), slot, 1);
  bool good = true;
  uint32_t number = 0;
  std::printf(
      "ns a contribution        folded, warm |  cold: first   folded   last with its reply\n");
  for (const auto& one : kOps) {
    Costs costs;
    for (uint32_t turn = 0; turn < kTurns; ++turn)
      job.turn(number++, one.op, costs);
    const double warm = job.again(program, one.op);
    const bool holds = one.bar_ns == 0 || warm <= one.bar_ns;
    good = good && holds;
    std::printf("%-26s %10.0f | %12.0f %8.0f %8.0f", one.name, warm, median(costs.first),
                median(costs.more), median(costs.last));
    if (one.bar_ns > 0) std::printf("   warm <= %.0f %s", one.bar_ns, holds ? "PASS" : "FAIL");
    std::printf("\n");
  }
  good = live_row(job, sink, driver->program(), slot) && good;
  if (!job.good) std::printf("a run did something else\n");
  return good && job.good ? 0 : 1;
}
