// SPDX-License-Identifier: Apache-2.0
#include "codec/index/device_counted.h"

#include "base/bits.h"

namespace addend::index {

DeviceCounted::DeviceCounted(const cuda::Device& device, const IndexKernels& kernels)
    : device_(device),
      kernels_(kernels),
      counted_(device),
      bitmap_(device.runtime),
      offsets_(device.runtime),
      bases_(device.runtime),
      totals_(device.runtime) {}

Status DeviceCounted::open() {
  ADDEND_TRY(counted_.open());
  return totals_.reserve(sizeof(Totals));
}

Status DeviceCounted::reserve(uint32_t width, uint64_t count) {
  width_ = width;
  count_ = count;
  ADDEND_TRY(bitmap_.reserve(words_for(count) * 8));
  ADDEND_TRY(offsets_.reserve(tiles_for(width, count) * sizeof(uint32_t)));
  return bases_.reserve(ceil_div(count, kGroupBits) * sizeof(uint64_t));
}

Status DeviceCounted::count() {
  ADDEND_TRY(
      device_.check(device_.runtime->fill(totals_.as<void>(), 0, sizeof(Totals), device_.stream),
                    "clearing totals"));
  const CountCall call{width_,
                       count_,
                       bitmap(),
                       bitmap(),
                       offsets_.as<uint32_t>(),
                       bases_.as<uint64_t>(),
                       0,
                       totals_.as<Totals>(),
                       counted_.address(),
                       counted_.expect()};
  return device_.check(kernels_.count(call, device_.stream), "counting positions");
}

Result<uint64_t> DeviceCounted::size() const {
  const Result<const cuda::Mail*> mail = counted_.wait();
  ADDEND_TRY(mail);
  return (*mail)->numbers[0];
}

CountedUnion DeviceCounted::counted() const {
  return {width_,
          count_,
          bitmap(),
          offsets_.as<uint32_t>(),
          bases_.as<uint64_t>(),
          totals_.as<Totals>()};
}

uint64_t DeviceCounted::memory_bytes() const {
  return bitmap_.capacity() + offsets_.capacity() + bases_.capacity() + totals_.capacity();
}

}  // namespace addend::index
