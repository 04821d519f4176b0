// SPDX-License-Identifier: Apache-2.0
// addend doctor: what this machine and build can do, in words.
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "apps/addend/command.h"
#include "apps/addend/machine.h"
#include "apps/addend/table.h"

namespace addend::cli {

namespace {

struct Finding {
  const char* topic;
  std::string words;
};

std::string memory_words(const Machine& machine) {
  std::string words =
      fmt::format("{}, {} available", format_bytes(static_cast<double>(machine.memory_bytes)),
                  format_bytes(static_cast<double>(machine.available_bytes)));
  if (machine.huge_pages == "never") {
    return words + "; huge pages are off: large gradients will be slower (page faults)";
  }
  if (machine.huge_pages.empty())
    return words + "; the kernel does not say whether it has huge pages";
  return words + "; transparent huge pages: " + machine.huge_pages;
}

std::string mpi_words(const Machine& machine) {
  if (!machine.mpi) {
    return "not in this build; 'addend perf --reducer mpi' needs one made with libopenmpi-dev or "
           "libmpich-dev";
  }
  return "in this build: " +
         machine.mpi_library.substr(0, machine.mpi_library.find_first_of(",\n"));
}

std::string cuda_words(const Machine& machine) {
  if (machine.cuda_devices.empty()) {
    return machine.no_cuda + (machine.nvidia_driver ? "; an NVIDIA driver is loaded"
                                                    : "; no NVIDIA driver is loaded");
  }
  std::vector<std::string> words;
  for (const DeviceDescription& one : machine.cuda_devices) {
    words.push_back(fmt::format("{} ({}, {} multiprocessors, capability {})", one.name,
                                format_bytes(static_cast<double>(one.memory_bytes)),
                                one.multiprocessors, one.capability));
  }
  const DeviceDescription& first = machine.cuda_devices.front();
  return fmt::format("{}; the driver does CUDA {}, kernels were built with {}", join(words, ", "),
                     first.driver, first.runtime);
}

std::string bpf_words(const Machine& machine) {
  return fmt::format(
      "this build has no BPF data plane; {}, {}",
      machine.root ? "running as root" : "not running as root",
      machine.bpf_filesystem ? "/sys/fs/bpf is mounted" : "/sys/fs/bpf is not mounted");
}

std::string simd_words(const Machine& machine) {
  return fmt::format("{} in use; this machine can run {}", machine.simd,
                     join(machine.simd_targets, ", "));
}

std::vector<Finding> findings(const Machine& machine) {
  return {
      {"addend", fmt::format("{}, {} build, {}", machine.version, machine.build_type,
                             "compiler " + machine.compiler)},
      {"SIMD", simd_words(machine)},
      {"cores", fmt::format("{} usable, {}", machine.cores, machine.cpu)},
      {"memory", memory_words(machine)},
      {"kernel", machine.kernel},
      {"MPI", mpi_words(machine)},
      {"CUDA", cuda_words(machine)},
      {"BPF", bpf_words(machine)},
      {"network", machine.network_namespaces
                      ? (machine.root ? "namespaces available, and root may create them"
                                      : "namespaces available, but creating them needs root")
                      : "this kernel has no network namespaces"},
  };
}

int run_doctor(bool json) {
  const Machine machine = describe_machine();
  if (json) {
    fmt::print("{}\n", to_json(machine).dump(2));
    return 0;
  }
  for (const Finding& finding : findings(machine)) {
    fmt::print("{:<8}  {}\n", finding.topic, finding.words);
  }
  if (machine.build_type != "Release") {
    fmt::print("\nThis is not a Release build: do not judge speed by it.\n");
  }
  return 0;
}

}  // namespace

void add_doctor_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("doctor", "Say what this machine and build can do");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print one JSON document");
  command->footer("Examples:\n  addend doctor\n  addend doctor --json | python3 -m json.tool\n");
  command->callback([json, &exit] { exit.code = run_doctor(*json); });
}

}  // namespace addend::cli
