// SPDX-License-Identifier: Apache-2.0
// What this machine is and what this build can do on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "addend/device.h"

namespace addend::cli {

struct Machine {
  std::string version;     ///< of addend
  std::string build_type;  ///< Release, Debug, ...
  std::string compiler;
  std::string cpu;
  uint32_t cores = 0;  ///< that this process may use
  uint64_t memory_bytes = 0;
  uint64_t available_bytes = 0;
  std::string huge_pages;  ///< the kernel's setting: always, madvise, never, or empty
  std::string kernel;
  std::string simd;  ///< in use
  std::vector<std::string> simd_targets;
  bool mpi = false;
  std::string mpi_library;
  bool nvidia_driver = false;  ///< a driver is loaded, whatever this build does with it
  std::vector<DeviceDescription> cuda_devices;  ///< that codecs can run on
  std::string no_cuda;                          ///< why there are none
  bool root = false;
  bool bpf_filesystem = false;
  bool network_namespaces = false;
};

Machine describe_machine();

/// The machine as reports store it.
nlohmann::json to_json(const Machine& machine);

/// "4 cores of <cpu>, 16 GiB memory, AVX2, Linux 6.1".
std::string summarize(const Machine& machine);

/// A line "Name:  1234 kB" of a /proc file, in bytes; 0 where there is none.
uint64_t read_proc_kib(const char* path, const std::string& name);

}  // namespace addend::cli
