// SPDX-License-Identifier: Apache-2.0
#include "dataplane/xdp/driver.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace addend::dataplane {
namespace {

// The compiled program.bpf.c, an ELF file.
alignas(8) constexpr unsigned char kProgram[] = {
#include "program.bpf.inc"
};

struct CloseObject {
  void operator()(bpf_object* object) const { bpf_object__close(object); }
};
using Object = std::unique_ptr<bpf_object, CloseObject>;

std::string kernel_release() {
  utsname name{};
  uname(&name);
  return name.release;
}

Error load_error(int code) {
  if (code == EPERM) {
    return make_error(Errc::kUnavailable,
                      "the kernel does not let this process load XDP programs: run it as root, or "
                      "with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
  }
  if (code == EACCES) {
    return make_error(Errc::kUnavailable,
                      "the kernel's verifier refuses the XDP program: this process lacks "
                      "CAP_PERFMON, or this kernel cannot see that the program is safe");
  }
  return make_error(Errc::kUnsupported,
                    "the kernel does not take the XDP program: " + std::string(strerror(code)));
}

Error attach_error(int code, const std::string& interface) {
  const std::string name = "interface '" + interface + "'";
  switch (code) {
    case EBUSY:
    case EEXIST:
      return make_error(Errc::kUnavailable, name + " has another XDP program already");
    case EOPNOTSUPP:
      return make_error(Errc::kUnsupported, "the driver of " + name + " has no native XDP");
    case ERANGE:
    case EINVAL:
    case EMSGSIZE:
      return make_error(Errc::kUnsupported,
                        "the driver of " + name +
                            " refuses XDP as it is set up; mostly its MTU is too large (at most "
                            "about 3500) or it receives in offloaded super-packets (LRO)");
    default:
      return make_error(Errc::kUnavailable,
                        "cannot attach to " + name + ": " + std::string(strerror(code)));
  }
}

// Nothing of libbpf's talk goes to the process's standard error.
int say_nothing(libbpf_print_level, const char*, va_list) { return 0; }

}  // namespace

struct Driver::Loaded {
  Object object;
  net::Descriptor link;
  std::vector<std::pair<void*, std::size_t>> mapped;
  int interface_index = 0;
  int program = -1;

  ~Loaded() {
    for (const auto& [address, bytes] : mapped)
      munmap(address, bytes);
  }

  template <typename T>
  Status map(const char* name, T*& into) {
    bpf_map* map = bpf_object__find_map_by_name(object.get(), name);
    const uint64_t entries = bpf_map__max_entries(map);
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    // The kernel's stride is a multiple of 8, as that of C is here.
    static_assert(sizeof(T) % 8 == 0);
    const std::size_t bytes = (entries * sizeof(T) + page - 1) / page * page;
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(map), 0);
    if (address == MAP_FAILED) return net::io_error("mmap of the XDP program's memory");
    mapped.emplace_back(address, bytes);
    into = static_cast<T*>(address);
    return {};
  }

  // One map for each number of copies, see program.bpf.c.
  Status fill_copies() {
    const int outer = bpf_map__fd(bpf_object__find_map_by_name(object.get(), "copies"));
    const int readdress =
        bpf_program__fd(bpf_object__find_program_by_name(object.get(), "readdress"));
    for (uint32_t world = 1; world <= ADDEND_MAX_JOB_WORKERS; ++world) {
      const net::Descriptor inner(bpf_map_create(BPF_MAP_TYPE_DEVMAP, nullptr, sizeof(uint32_t),
                                                 sizeof(bpf_devmap_val), world, nullptr));
      if (!inner) return load_error(errno);
      for (uint32_t copy = 0; copy < world; ++copy) {
        bpf_devmap_val target{};
        target.ifindex = static_cast<uint32_t>(interface_index);
        target.bpf_prog.fd = readdress;
        if (bpf_map_update_elem(inner.get(), &copy, &target, 0) != 0) return load_error(errno);
      }
      const int fd = inner.get();
      if (bpf_map_update_elem(outer, &world, &fd, 0) != 0) return load_error(errno);
    }
    return {};
  }
};

Status check_kernel(const std::string& release) {
  int major = 0, minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) == 2 &&
      std::pair(major, minor) >= std::pair(5, 15)) {
    return {};
  }
  return make_error(Errc::kUnsupported,
                    "the XDP data plane needs Linux 5.15 or later, this is " + release);
}

Driver::~Driver() = default;

Result<std::unique_ptr<Driver>> Driver::load(const std::string& interface) {
  ADDEND_TRY(check_kernel(kernel_release()));
  std::unique_ptr<Driver> driver(new Driver);
  driver->interface_ = interface;
  driver->loaded_ = std::make_unique<Loaded>();
  Loaded& loaded = *driver->loaded_;
  loaded.interface_index = static_cast<int>(if_nametoindex(interface.c_str()));
  if (loaded.interface_index == 0) {
    return make_error(Errc::kInvalidArgument, "there is no interface '" + interface + "'");
  }
  libbpf_set_print(say_nothing);
  bpf_object_open_opts options{};
  options.sz = sizeof(options);
  options.object_name = "addend";
  loaded.object.reset(bpf_object__open_mem(kProgram, sizeof(kProgram), &options));
  if (!loaded.object) return load_error(errno);
  if (const int code = bpf_object__load(loaded.object.get()); code != 0) return load_error(-code);
  loaded.program =
      bpf_program__fd(bpf_object__find_program_by_name(loaded.object.get(), "aggregate"));
  ADDEND_TRY(loaded.map("directory", driver->memory_.directory));
  ADDEND_TRY(loaded.map("jobs", driver->memory_.jobs));
  ADDEND_TRY(loaded.map("keys", driver->memory_.keys));
  ADDEND_TRY(loaded.map("slots", driver->memory_.slots));
  ADDEND_TRY(loaded.fill_copies());
  driver->jobs_ = std::make_unique<DriverJobs>(driver->memory_);
  return driver;
}

Status Driver::attach() {
  bpf_link_create_opts options{};
  options.sz = sizeof(options);
  options.flags = XDP_FLAGS_DRV_MODE;
  const int link = bpf_link_create(loaded_->program, loaded_->interface_index, BPF_XDP, &options);
  if (link < 0) return attach_error(-link, interface_);
  loaded_->link = net::Descriptor(link);
  return {};
}

int Driver::program() const { return loaded_->program; }

}  // namespace addend::dataplane
