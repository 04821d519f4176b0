// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/machine.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "addend/reduce.h"
#include "addend/simd.h"
#include "apps/addend/table.h"

namespace addend::cli {

namespace {

std::string read_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The chosen word of a line such as "always [madvise] never".
std::string bracketed(const std::string& line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return line.substr(open + 1, close - open - 1);
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

uint32_t usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<uint32_t>(CPU_COUNT(&set));
  return std::thread::hardware_concurrency();
}

bool exists(const char* path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

/// Mounted, which the bare directory is not enough for.
bool bpf_mounted() {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    if (line.find(" /sys/fs/bpf bpf ") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

uint64_t read_proc_kib(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

Machine describe_machine() {
  Machine machine;
  machine.version = ADDEND_VERSION;
  machine.build_type = ADDEND_BUILD_TYPE;
  machine.compiler = __VERSION__;
  machine.cpu = cpu_model();
  machine.cores = usable_cores();
  machine.memory_bytes = read_proc_kib("/proc/meminfo", "MemTotal");
  machine.available_bytes = read_proc_kib("/proc/meminfo", "MemAvailable");
  machine.huge_pages = bracketed(read_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  utsname name{};
  if (uname(&name) == 0) machine.kernel = fmt::format("{} {}", name.sysname, name.release);
  machine.simd = simd_target();
  machine.simd_targets = simd_targets();
  machine.mpi = has_mpi();
  machine.mpi_library = mpi_library();
  machine.nvidia_driver = exists("/dev/nvidiactl");
  if (auto devices = cuda_devices()) {
    machine.cuda_devices = std::move(*devices);
  } else {
    machine.no_cuda = devices.error().message;
  }
  machine.root = geteuid() == 0;
  machine.bpf_filesystem = bpf_mounted();
  machine.network_namespaces = exists("/proc/self/ns/net");
  return machine;
}

nlohmann::json to_json(const Machine& machine) {
  auto devices = nlohmann::json::array();
  for (const DeviceDescription& one : machine.cuda_devices) {
    devices.push_back({{"name", one.name},
                       {"memory_bytes", one.memory_bytes},
                       {"multiprocessors", one.multiprocessors},
                       {"capability", one.capability},
                       {"driver", one.driver},
                       {"runtime", one.runtime}});
  }
  return {
      {"version", machine.version},
      {"build_type", machine.build_type},
      {"compiler", machine.compiler},
      {"cpu", machine.cpu},
      {"cores", machine.cores},
      {"memory_bytes", machine.memory_bytes},
      {"available_bytes", machine.available_bytes},
      {"huge_pages", machine.huge_pages},
      {"kernel", machine.kernel},
      {"simd", machine.simd},
      {"simd_targets", machine.simd_targets},
      {"mpi", machine.mpi},
      {"mpi_library", machine.mpi_library},
      {"cuda_backend", !machine.cuda_devices.empty()},
      {"cuda_devices", std::move(devices)},
      {"no_cuda", machine.no_cuda},
      {"nvidia_driver", machine.nvidia_driver},
      {"bpf_data_plane", false},
      {"root", machine.root},
      {"bpf_filesystem", machine.bpf_filesystem},
      {"network_namespaces", machine.network_namespaces},
  };
}

std::string summarize(const Machine& machine) {
  return fmt::format("{} {} of {}, {} memory, {} kernels, {}", machine.cores,
                     machine.cores == 1 ? "core" : "cores", machine.cpu,
                     format_bytes(static_cast<double>(machine.memory_bytes)), machine.simd,
                     machine.kernel);
}

}  // namespace addend::cli
