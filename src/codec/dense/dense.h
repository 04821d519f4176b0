// SPDX-License-Identifier: Apache-2.0
// The baseline and the fallback: one round that sums the values as they are.
#pragma once

#include <memory>

#include "addend/codec.h"
#include "base/buffer.h"
#include "codec/options.h"

namespace addend {

Result<std::unique_ptr<Codec>> create_dense(const CodecSpec& spec, const Layout& layout);
uint64_t dense_fingerprint(const Layout& layout, uint64_t step);
const std::vector<OptionHelp>& dense_options();

/// The values of one step as they are, times the layout's scale: in a copy, because the caller's
/// gradient must survive a failed reduction, or in the gradient itself if it was lent.
struct DenseValues {
  const void* gradient = nullptr;
  void* lent = nullptr;  ///< null, or the same as gradient
};

/// Adds the plane of these values to `round` as the last of its step and returns where it lies,
/// which is in `copy` unless they were lent.
Result<void*> add_dense_plane(const Layout& layout, const DenseValues& values, Buffer& copy,
                              Round& round);
/// Copies the summed plane to where the caller wants it, unless it is there already.
void take_dense_plane(const Layout& layout, const void* plane, void* gradient);

}  // namespace addend
