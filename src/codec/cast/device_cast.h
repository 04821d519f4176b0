// SPDX-License-Identifier: Apache-2.0
// The cast codec on a device.
#pragma once

#include <memory>

#include "addend/codec.h"

namespace addend::cast {

Result<std::unique_ptr<Codec>> create_cast_on_device(const CodecSpec& spec, const Layout& layout);

}  // namespace addend::cast
