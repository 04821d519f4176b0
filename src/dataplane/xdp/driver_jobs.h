// SPDX-License-Identifier: Apache-2.0
// Jobs in the memory that the server shares with the driver's program. Memory only, no system call:
// a server that has given up its privileges still starts and ends jobs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "aggregate/slots.h"
#include "auth/frame_key.h"
#include "dataplane/xdp/layout.h"
#include "net/address.h"

namespace addend::dataplane {

/// Where the program's arrays are; zeros at first.
struct DriverMemory {
  addend_xdp_directory* directory = nullptr;
  addend_xdp_job* jobs = nullptr;    ///< ADDEND_XDP_JOBS
  addend_xdp_key* keys = nullptr;    ///< ADDEND_XDP_KEYS for each job
  addend_xdp_slot* slots = nullptr;  ///< ADDEND_XDP_SLOTS
};

/// What the driver needs to know of a job's epoch.
struct DriverJobOptions {
  aggregate::SlotsOptions slots;  ///< of the whole job
  std::span<const auth::FrameKey> worker_keys;
  const auth::FrameKey* result_key = nullptr;
  std::span<const net::Address> workers;
  uint32_t packets_per_s = 0;  ///< granted to each worker in each thread; 0: no limit
  struct Part {
    uint32_t first_slot = 0, slots = 0;
    uint16_t port = 0;
  };
  std::vector<Part> parts;  ///< of the data threads
};

/// What the driver did, of what the server's own counters do not show.
struct DriverCounters {
  aggregate::Counters counters;
  uint64_t packets = 0, bytes = 0, sent_packets = 0, sent_bytes = 0;
};

class DriverJobs;

/// A data thread's slots of one job. A slot is the driver's or the server's: in the server's hands
/// its banks are in `Slots`, in the driver's they are in the shared memory, and move under the
/// slot's lock. One thread at a time, and it outlives neither the driver nor the server's threads.
class DriverPart {
 public:
  /// The slots are the server's again, for good.
  ~DriverPart();
  DriverPart(const DriverPart&) = delete;
  DriverPart& operator=(const DriverPart&) = delete;

  void set_table(uint32_t number, const aggregate::Table& table);

  /// While some part of the job is held, the driver leaves all of its frames to the server.
  void hold();
  void release();

  /// Makes a slot the server's, with what is in it.
  void fetch(aggregate::Slots& slots, uint32_t slot);
  void fetch_all(aggregate::Slots& slots);
  /// Makes a slot the driver's, unless a turn of it is open: that one ends where it began.
  void give(const aggregate::Slots& slots, uint32_t slot);
  void give_all(const aggregate::Slots& slots);

  /// Of the turns that are open in the driver, when the first began; ~0 if there is none.
  uint64_t oldest_ns() const;
  /// Where workers wait, of the turns that are open in the driver; `slots` knows their order.
  aggregate::Wait first_wait(const aggregate::Slots& slots) const;
  DriverCounters counters() const;
  uint64_t memory_bytes() const { return uint64_t{range_.slots} * sizeof(addend_xdp_slot); }

 private:
  friend class DriverJobs;
  struct Job;  // gives its memory back when its last part goes
  DriverPart(std::shared_ptr<Job> job, const DriverJobOptions::Part& range, uint32_t number);
  addend_xdp_slot& slot_at(uint32_t slot) const;

  std::shared_ptr<Job> job_;
  DriverJobOptions::Part range_;
  uint64_t bit_;              // among the job's parts
  uint32_t with_driver_ = 0;  // slots
};

/// Any thread.
class DriverJobs {
 public:
  explicit DriverJobs(const DriverMemory& memory);

  /// Makes room for a job; its slots are the server's until it gives them. Empty if the driver
  /// cannot do the job, which then stays with the server: no room, payloads that do not fit in a
  /// page, or workers of both IPv4 and IPv6.
  std::vector<std::unique_ptr<DriverPart>> add(const DriverJobOptions& options);

 private:
  friend struct DriverPart::Job;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace addend::dataplane
