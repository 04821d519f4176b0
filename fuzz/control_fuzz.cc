// SPDX-License-Identifier: Apache-2.0
// Any bytes as a stream of control messages: what parses is written back as it was, and the parser
// never takes more than there is.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fuzz/input.h"
#include "net/control_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> rest(data, size);
  while (!rest.empty()) {
    addend::net::ControlMessage message;
    const auto taken = addend::net::parse_control(rest, message);
    if (!taken || *taken == 0) return 0;
    addend::fuzz::require(*taken <= rest.size());
    std::vector<uint8_t> again;
    addend::net::append_control(again, message.type, message.body, message.numbers());
    addend::fuzz::require(std::equal(again.begin(), again.end(), rest.begin(),
                                     rest.begin() + static_cast<std::ptrdiff_t>(*taken)));
    rest = rest.subspan(*taken);
  }
  return 0;
}
