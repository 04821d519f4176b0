// SPDX-License-Identifier: Apache-2.0
// Matrices as products of two thin factors, by one power iteration a step. Both factors are sums
// over workers, so whoever adds floats adds them. docs/formats/lowrank.md.
#pragma once

#include <memory>

#include "addend/codec.h"
#include "codec/options.h"

namespace addend::lowrank {

Result<std::unique_ptr<Codec>> create_lowrank(const CodecSpec& spec, const Layout& layout);
const std::vector<OptionHelp>& lowrank_options();

}  // namespace addend::lowrank
