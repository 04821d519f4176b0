// SPDX-License-Identifier: Apache-2.0
// What the server is doing, for machines and for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "service/data_plane.h"
#include "service/registry.h"

namespace addend::service {

/// "duplicate", "tag", ...
const char* refusal_name(addend_refusal refusal);

struct JobStatus {
  JobView view;
  aggregate::Counters counters;  ///< of the epoch, over all threads
  uint64_t memory_bytes = 0;
  aggregate::Wait wait;  ///< the first of all threads

  /// Workers, by bit: to come, or to contribute.
  uint64_t waited_for() const { return view.waited_for | wait.workers; }
};

/// What became of those who came.
struct ControlStatus {
  uint32_t connections = 0;      ///< open, of tenants
  uint32_t handshakes = 0;       ///< in progress
  uint64_t dropped = 0;          ///< handshakes that were not finished in time, or had no room
  uint64_t refused = 0;          ///< connections beyond a limit
  uint64_t cut_off = 0;          ///< idle ones that were no workers, and peers that did not read
  uint64_t accept_failures = 0;  ///< times that there was no descriptor for a new one
};

struct ServerStatus {
  uint32_t boot = 0;
  double uptime_s = 0;
  uint32_t threads = 0;
  ControlStatus control;
  uint64_t packets = 0, bytes = 0, sent_packets = 0, sent_bytes = 0;
  uint64_t driver_packets = 0;                           ///< of packets: by the XDP program
  uint64_t dropped = 0, too_long = 0;                    ///< of what was to be sent
  std::array<uint64_t, ADDEND_REFUSAL_COUNT> refused{};  ///< of no job
  std::vector<JobStatus> jobs;
};

/// Adds what one thread says.
void add(ServerStatus& status, const DataPlaneStatus& plane);

/// The Prometheus text format.
std::string to_metrics(const ServerStatus& status);
/// What the page asks for every second.
std::string to_json(const ServerStatus& status);
/// A page without outside assets that shows to_json live.
std::string status_page();

}  // namespace addend::service
