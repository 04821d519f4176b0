// SPDX-License-Identifier: Apache-2.0
// dense.h on a device.
#pragma once

#include "codec/dense/dense.h"
#include "codec/index/index_kernels.h"
#include "cuda/memory.h"

namespace addend {

Result<std::unique_ptr<Codec>> create_dense_on_device(const CodecSpec& spec, const Layout& layout);

/// add_dense_plane and take_dense_plane, enqueued. REQUIRES: the device is the calling thread's.
Result<void*> add_dense_plane(const Layout& layout, const DenseValues& values,
                              const cuda::Device& device, cuda::DeviceBuffer& copy, Round& round);
Status take_dense_plane(const Layout& layout, const cuda::Device& device, const void* plane,
                        void* gradient);

}  // namespace addend
