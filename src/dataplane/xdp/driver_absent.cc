// SPDX-License-Identifier: Apache-2.0
// In place of driver.cc where clang or libbpf was not there at build time.
#include "dataplane/xdp/driver.h"

namespace addend::dataplane {

struct Driver::Loaded {};

Driver::~Driver() = default;

Status check_kernel(const std::string&) {
  return make_error(Errc::kUnsupported,
                    "this build has no XDP data plane: it was made without clang or without libbpf "
                    "(Debian: clang-14, libbpf-dev)");
}

Result<std::unique_ptr<Driver>> Driver::load(const std::string&) {
  return check_kernel("").error();
}

Status Driver::attach() { return make_error(Errc::kUnsupported, "no XDP data plane"); }

int Driver::program() const { return -1; }

}  // namespace addend::dataplane
