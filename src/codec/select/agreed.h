// SPDX-License-Identifier: Apache-2.0
// Selectors by which all workers send the same positions: random, leader.
#pragma once

#include <memory>

#include "addend/codec.h"
#include "codec/select/options.h"

namespace addend::select {

Result<std::unique_ptr<Codec>> create_agreed(const Layout& layout, const Options& options);

}  // namespace addend::select
