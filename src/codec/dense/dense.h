// SPDX-License-Identifier: Apache-2.0
// The baseline and the fallback: one round that sums the values as they are.
#pragma once

#include <memory>

#include "addend/codec.h"
#include "codec/options.h"

namespace addend {

Result<std::unique_ptr<Codec>> create_dense(const CodecSpec& spec, const Layout& layout);
const std::vector<OptionHelp>& dense_options();

}  // namespace addend
