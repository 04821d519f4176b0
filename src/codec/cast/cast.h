// SPDX-License-Identifier: Apache-2.0
// The plainest lossy codec: one round in which every element travels as a 16-bit float, added as a
// backend adds 16-bit gradients. docs/formats/cast.md.
#pragma once

#include <memory>

#include "addend/codec.h"
#include "codec/options.h"

namespace addend::cast {

Result<std::unique_ptr<Codec>> create_cast(const CodecSpec& spec, const Layout& layout);
const std::vector<OptionHelp>& cast_options();

}  // namespace addend::cast
