// SPDX-License-Identifier: Apache-2.0
#include "dataplane/xdp/driver_jobs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>

#include "base/assert.h"
#include "base/bits.h"

namespace addend::dataplane {
namespace {

using aggregate::BankImage;

static_assert(static_cast<int>(BankImage::State::kIdle) == ADDEND_XDP_IDLE);
static_assert(static_cast<int>(BankImage::State::kOpen) == ADDEND_XDP_OPEN);
static_assert(static_cast<int>(BankImage::State::kClosed) == ADDEND_XDP_CLOSED);

constexpr uint64_t kSecondNs = 1'000'000'000;

// The driver holds it for a microsecond at most.
class Lock {
 public:
  explicit Lock(addend_xdp_slot& slot) : slot_(slot) {
    uint32_t free = 0;
    while (!__atomic_compare_exchange_n(&slot_.lock, &free, 1, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
      free = 0;
      std::this_thread::yield();
    }
  }
  ~Lock() { __atomic_store_n(&slot_.lock, 0, __ATOMIC_RELEASE); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  addend_xdp_slot& slot_;
};

// Another thread, or the driver on another core, may be changing it.
template <typename T>
T peek(const T& number) {
  return __atomic_load_n(&number, __ATOMIC_RELAXED);
}

uint8_t* sums_of(addend_xdp_slot& slot, uint32_t bank) {
  return reinterpret_cast<uint8_t*>(slot.sums[bank]);
}

bool is_v4(const net::Address& address) { return IN6_IS_ADDR_V4MAPPED(&address.raw.sin6_addr); }

// Replies to all are copies of one packet, and a copy cannot change its length.
bool fits(const DriverJobOptions& options) {
  if (options.slots.payload_bytes > ADDEND_XDP_PAYLOAD_BYTES) return false;
  return std::all_of(options.workers.begin(), options.workers.end(), [&](const net::Address& one) {
    return one.known() && is_v4(one) == is_v4(options.workers[0]);
  });
}

void write_key(const auth::FrameKey& key, uint32_t payload_bytes, addend_xdp_key& to) {
  std::copy(key.prf().begin(), key.prf().end(), to.prf);
  const std::size_t words = ADDEND_TAG_HASH_WORDS(payload_bytes);
  ADDEND_ASSERT(key.hash_words().size() >= words);
  std::copy_n(key.hash_words().begin(), words, to.hash);
}

void write_job(const DriverJobOptions& options, uint32_t first, addend_xdp_job& to) {
  std::memset(&to, 0, sizeof(to));
  const aggregate::SlotsOptions& slots = options.slots;
  to.epoch = slots.epoch;
  to.boot = slots.boot;
  to.first = first;
  to.first_slot = slots.first_slot;
  to.slots = slots.slots;
  to.world = slots.world;
  to.payload_bytes = slots.payload_bytes;
  to.ops = slots.ops;
  to.quorum = slots.quorum;
  to.everyone = low_mask(slots.world);
  // One bucket for what the threads have one each for.
  if (options.packets_per_s > 0) {
    to.interval_ns = kSecondNs / options.packets_per_s / options.parts.size();
  }
  for (std::size_t w = 0; w < options.workers.size(); ++w) {
    std::memcpy(to.workers[w].address, &options.workers[w].raw.sin6_addr, 16);
    to.workers[w].port = options.workers[w].raw.sin6_port;
  }
}

}  // namespace

// What all jobs share. Places are taken in turn, so that one that was given back rests for as long
// as possible: the driver may still be about to look at it.
struct DriverJobs::State {
  explicit State(const DriverMemory& shared) : memory(shared) {}

  const DriverMemory memory;
  std::mutex mutex;
  std::vector<bool> used_jobs = std::vector<bool>(ADDEND_XDP_JOBS);
  std::vector<bool> used_slots = std::vector<bool>(ADDEND_XDP_SLOTS);
  uint32_t next_job = 0, next_slot = 0;

  static constexpr uint32_t kNone = ~0u;

  // The first of `count` neighbours that are free, at or after `from` or else from the beginning.
  static uint32_t find_free(const std::vector<bool>& used, uint32_t from, uint32_t count) {
    for (const uint32_t begin : {from, 0u}) {
      uint32_t run = 0;
      for (uint32_t i = begin; i < used.size(); ++i) {
        run = used[i] ? 0 : run + 1;
        if (run == count) return i + 1 - count;
      }
    }
    return kNone;
  }
  static void mark(std::vector<bool>& used, uint32_t first, uint32_t count, bool value) {
    std::fill_n(used.begin() + first, count, value);
  }

  uint64_t* free_entry(uint32_t epoch) {
    for (uint32_t probe = 0; probe < ADDEND_XDP_PROBES; ++probe) {
      uint64_t& entry = memory.directory->entries[addend_xdp_place(epoch, probe)];
      if (entry == 0) return &entry;
    }
    return nullptr;
  }
};

struct DriverPart::Job {
  std::shared_ptr<DriverJobs::State> all;
  uint32_t number, first, slots;
  uint64_t* entry;

  addend_xdp_job& shared() const { return all->memory.jobs[number]; }
  ~Job() {
    const std::lock_guard lock(all->mutex);
    __atomic_store_n(entry, 0, __ATOMIC_RELEASE);
    addend_xdp_key* keys = all->memory.keys + uint64_t{number} * ADDEND_XDP_KEYS;
    std::memset(keys, 0, ADDEND_XDP_KEYS * sizeof(*keys));
    std::memset(&shared(), 0, sizeof(addend_xdp_job));
    DriverJobs::State::mark(all->used_jobs, number, 1, false);
    DriverJobs::State::mark(all->used_slots, first, slots, false);
  }
};

DriverPart::DriverPart(std::shared_ptr<Job> job, const DriverJobOptions::Part& range,
                       uint32_t number)
    : job_(std::move(job)), range_(range), bit_(uint64_t{1} << number) {
  for (uint32_t s = range_.first_slot; s < range_.first_slot + range_.slots; ++s) {
    addend_xdp_slot& slot = slot_at(s);
    const Lock lock(slot);
    slot.owner = ADDEND_XDP_SERVER;
    slot.epoch = job_->shared().epoch;
    slot.port = htons(range_.port);
    slot.counters = {};
  }
}

DriverPart::~DriverPart() {
  hold();
  for (uint32_t s = range_.first_slot; s < range_.first_slot + range_.slots; ++s) {
    addend_xdp_slot& slot = slot_at(s);
    const Lock lock(slot);
    slot.owner = ADDEND_XDP_SERVER;
    slot.epoch = 0;
  }
}

addend_xdp_slot& DriverPart::slot_at(uint32_t slot) const {
  ADDEND_ASSERT(slot - range_.first_slot < range_.slots);
  const addend_xdp_job& job = job_->shared();
  return job_->all->memory.slots[job_->first + slot - job.first_slot];
}

void DriverPart::set_table(uint32_t number, const aggregate::Table& table) {
  addend_xdp_job& job = job_->shared();
  addend_xdp_table& to = job.tables[number];
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t low = table[byte & 15], high = table[byte >> 4];
    to.narrow[byte] = static_cast<uint16_t>((low & 0xFF) | high << 8);
    to.wide[byte] = low | high << 16;
  }
  __atomic_fetch_or(&job.known_tables, 1u << number, __ATOMIC_RELEASE);
}

void DriverPart::hold() { __atomic_fetch_or(&job_->shared().held, bit_, __ATOMIC_SEQ_CST); }

void DriverPart::release() {
  if ((peek(job_->shared().held) & bit_) == 0) return;
  __atomic_fetch_and(&job_->shared().held, ~bit_, __ATOMIC_SEQ_CST);
}

void DriverPart::fetch(aggregate::Slots& slots, uint32_t number) {
  if (number - range_.first_slot >= range_.slots) return;
  addend_xdp_slot& slot = slot_at(number);
  if (peek(slot.owner) != ADDEND_XDP_DRIVER) return;  // only we would make it the driver's
  const Lock lock(slot);
  slot.owner = ADDEND_XDP_SERVER;
  --with_driver_;
  for (uint32_t b = 0; b < 2; ++b) {
    const addend_xdp_bank& bank = slot.banks[b];
    slots.set_bank(
        number, b,
        {bank.contributors, bank.opened_ns, bank.turn, bank.length, bank.sum_length, bank.op,
         bank.flags, static_cast<BankImage::State>(bank.state), sums_of(slot, b)});
  }
}

void DriverPart::fetch_all(aggregate::Slots& slots) {
  hold();
  for (uint32_t s = range_.first_slot; with_driver_ > 0; ++s)
    fetch(slots, s);
}

void DriverPart::give(const aggregate::Slots& slots, uint32_t number) {
  if (number - range_.first_slot >= range_.slots || slots.is_waiting(number)) return;
  addend_xdp_slot& slot = slot_at(number);
  const Lock lock(slot);
  if (slot.owner == ADDEND_XDP_DRIVER) return;
  for (uint32_t b = 0; b < 2; ++b) {
    const BankImage image = slots.bank(number, b);
    slot.banks[b] = {image.contributors,
                     image.opened_ns,
                     image.turn,
                     image.length,
                     image.sum_length,
                     image.op,
                     image.flags,
                     static_cast<uint8_t>(image.state),
                     0,
                     0};
    std::memcpy(sums_of(slot, b), image.sums, image.sum_length);
  }
  slot.owner = ADDEND_XDP_DRIVER;
  ++with_driver_;
}

void DriverPart::give_all(const aggregate::Slots& slots) {
  for (uint32_t s = range_.first_slot; s < range_.first_slot + range_.slots; ++s)
    give(slots, s);
}

uint64_t DriverPart::oldest_ns() const {
  uint64_t oldest = ~uint64_t{0};
  for (uint32_t s = range_.first_slot; s < range_.first_slot + range_.slots; ++s) {
    const addend_xdp_slot& slot = slot_at(s);
    if (peek(slot.owner) != ADDEND_XDP_DRIVER) continue;
    for (const addend_xdp_bank& bank : slot.banks) {
      if (peek(bank.state) == ADDEND_XDP_OPEN) oldest = std::min(oldest, peek(bank.opened_ns));
    }
  }
  return oldest;
}

aggregate::Wait DriverPart::first_wait(const aggregate::Slots& slots) const {
  aggregate::Wait first;
  for (uint32_t s = range_.first_slot; s < range_.first_slot + range_.slots; ++s) {
    const addend_xdp_slot& slot = slot_at(s);
    if (peek(slot.owner) != ADDEND_XDP_DRIVER) continue;
    for (const addend_xdp_bank& bank : slot.banks) {
      if (peek(bank.state) != ADDEND_XDP_OPEN) continue;
      first.join({slots.place(s, peek(bank.turn)), peek(bank.opened_ns),
                  job_->shared().everyone & ~peek(bank.contributors)});
    }
  }
  return first;
}

DriverCounters DriverPart::counters() const {
  DriverCounters all;
  aggregate::Counters& counters = all.counters;
  const addend_xdp_job& job = job_->shared();
  for (uint32_t s = range_.first_slot; s < range_.first_slot + range_.slots; ++s) {
    const addend_xdp_counters& one = slot_at(s).counters;
    counters.folded += peek(one.folded);
    counters.complete += peek(one.complete);
    counters.answered += peek(one.answered);
    counters.resent += peek(one.resent);
    counters.refused[ADDEND_REFUSAL_TURN] += peek(one.stale);
    counters.refused[ADDEND_REFUSAL_DUPLICATE] += peek(one.duplicate);
    all.bytes += peek(one.bytes);
    all.sent_bytes += peek(one.sent_bytes);
  }
  // The first part tells what is counted for the whole job.
  if (range_.first_slot == job.first_slot) {
    for (std::size_t i = 0; i < counters.refused.size(); ++i)
      counters.refused[i] += peek(job.refused[i]);
    for (std::size_t w = 0; w < counters.last.size(); ++w)
      counters.last[w] = peek(job.last[w]);
  }
  all.packets = counters.folded + counters.answered;
  for (const uint64_t refused : counters.refused)
    all.packets += refused;
  all.sent_packets = counters.answered + counters.complete * job.world;
  return all;
}

DriverJobs::DriverJobs(const DriverMemory& memory) : state_(std::make_shared<State>(memory)) {}

std::vector<std::unique_ptr<DriverPart>> DriverJobs::add(const DriverJobOptions& options) {
  std::vector<std::unique_ptr<DriverPart>> parts;
  if (!fits(options)) return parts;
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const uint32_t number = State::find_free(state.used_jobs, state.next_job, 1);
  const uint32_t first = State::find_free(state.used_slots, state.next_slot, options.slots.slots);
  uint64_t* entry = state.free_entry(options.slots.epoch);
  if (number == State::kNone || first == State::kNone || entry == nullptr) return parts;
  State::mark(state.used_jobs, number, 1, true);
  State::mark(state.used_slots, first, options.slots.slots, true);
  state.next_job = number + 1;
  state.next_slot = first + options.slots.slots;
  write_job(options, first, state.memory.jobs[number]);
  addend_xdp_key* keys = state.memory.keys + uint64_t{number} * ADDEND_XDP_KEYS;
  const uint32_t payload_bytes = options.slots.payload_bytes;
  for (std::size_t w = 0; w < options.worker_keys.size(); ++w)
    write_key(options.worker_keys[w], payload_bytes, keys[w]);
  write_key(*options.result_key, payload_bytes, keys[ADDEND_MAX_JOB_WORKERS]);
  const auto job = std::shared_ptr<DriverPart::Job>(
      new DriverPart::Job{state_, number, first, options.slots.slots, entry});
  for (std::size_t t = 0; t < options.parts.size(); ++t) {
    parts.push_back(std::unique_ptr<DriverPart>(
        new DriverPart(job, options.parts[t], static_cast<uint32_t>(t))));
  }
  __atomic_store_n(entry, uint64_t{options.slots.epoch} << 32 | (number + 1), __ATOMIC_RELEASE);
  return parts;
}

}  // namespace addend::dataplane
