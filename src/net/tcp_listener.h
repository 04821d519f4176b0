// SPDX-License-Identifier: Apache-2.0
// A TCP socket that takes connections.
#pragma once

#include <cstdint>

#include "addend/result.h"
#include "net/address.h"
#include "net/descriptor.h"

namespace addend::net {

/// Non-blocking; `port` becomes the one it has. Refused if somebody listens there.
Result<Descriptor> listen_tcp(const Address& address, uint16_t& port);

}  // namespace addend::net
