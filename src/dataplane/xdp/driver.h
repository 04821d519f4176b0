// SPDX-License-Identifier: Apache-2.0
// The data plane in a network driver (XDP): loads the program, attaches it to an interface, and
// maps the memory through which the server and the program share jobs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "addend/result.h"
#include "dataplane/xdp/driver_jobs.h"
#include "net/descriptor.h"

namespace addend::dataplane {

/// Whether Linux of this release, as `uname -r` says it, has what the program uses. kUnsupported if
/// it is too old, with the release in the message, or if this build has no program.
Status check_kernel(const std::string& release);

/// When it goes, however the process ends, the program goes with it and the interface is as before.
class Driver {
 public:
  /// Loads the program, for replies through this interface. kUnsupported if this build or this
  /// kernel has no XDP data plane, kUnavailable without the privilege, kInvalidArgument if there is
  /// no such interface; the message says which and what would help.
  static Result<std::unique_ptr<Driver>> load(const std::string& interface);
  /// From now on frames that arrive at the interface pass through the program: natively, in its
  /// driver. kUnsupported if that cannot.
  Status attach();
  ~Driver();

  DriverJobs& jobs() { return *jobs_; }
  const DriverMemory& memory() const { return memory_; }
  /// Of the program, for running it without a network.
  int program() const;

 private:
  Driver() = default;
  struct Loaded;  // what libbpf knows
  std::unique_ptr<Loaded> loaded_;
  std::string interface_;
  DriverMemory memory_;
  std::unique_ptr<DriverJobs> jobs_;
};

}  // namespace addend::dataplane
