// SPDX-License-Identifier: Apache-2.0
#include "codec/index/device_bloom.h"

#include "base/bits.h"

namespace addend::index {

DeviceBloom::DeviceBloom(const cuda::Device& device)
    : device_(device),
      filled_(device),
      counted_(device),
      filter_(device.runtime),
      found_(device.runtime),
      scratch_(device.runtime) {}

Status DeviceBloom::open() {
  const auto found = cuda::part<BloomKernels>();
  ADDEND_TRY(found);
  kernels_ = *found;
  ADDEND_TRY(filled_.open());
  ADDEND_TRY(counted_.open());
  return scratch_.reserve(sizeof(uint64_t));
}

Status DeviceBloom::open_filter(const BloomShape& shape, const uint64_t* local, uint64_t count,
                                Round& round) {
  ADDEND_TRY(filter_.reserve(shape.words * 8));
  count_ = count;
  call_ = {shape, filter_.as<uint64_t>(), const_cast<uint64_t*>(local), words_for(count)};
  ADDEND_TRY(device_.check(kernels_->insert(call_, device_.stream), "filling a filter"));
  round.add({Op::kOrU64, shape.words, filter_.as<void>(), nullptr, nullptr});
  return {};
}

Status DeviceBloom::find(uint64_t* bitmap) {
  call_.bitmap = bitmap;
  return device_.check(kernels_->find(call_, scratch_.as<uint64_t>(), filled_.address(),
                                      filled_.expect(), device_.stream),
                       "looking what a filter holds");
}

Result<double> DeviceBloom::false_positions(uint64_t found) const {
  const Result<const cuda::Mail*> mail = filled_.wait();
  ADDEND_TRY(mail);
  return bloom_false(call_.shape, (*mail)->numbers[0], count_, found);
}

Status DeviceBloom::open_found(const CountedUnion& held, uint64_t size, const uint64_t* local,
                               Round& round) {
  const uint64_t lanes = words_for(size);
  ADDEND_TRY(found_.reserve(lanes * 8));
  ADDEND_TRY(device_.check(device_.runtime->fill(found_.as<void>(), 0, lanes * 8, device_.stream),
                           "clearing bits"));
  const SelectCall call{held, const_cast<uint64_t*>(local), found_.as<uint64_t>()};
  ADDEND_TRY(device_.check(kernels_->select(call, device_.stream), "selecting bits"));
  round.add({Op::kOrU64, lanes, found_.as<void>(), nullptr, nullptr});
  return {};
}

Status DeviceBloom::close_found(const CountedUnion& held, uint64_t* bitmap) {
  const SelectCall call{held, bitmap, found_.as<uint64_t>()};
  return device_.check(kernels_->spread(call, device_.stream), "spreading bits");
}

Status DeviceBloom::count_nonzeros(uint32_t width, const void* values, uint64_t count) {
  return device_.check(
      kernels_->count_nonzeros(width, values, count, scratch_.as<uint64_t>(), counted_.address(),
                               counted_.expect(), device_.stream),
      "counting sums");
}

Result<uint64_t> DeviceBloom::nonzeros() const {
  const Result<const cuda::Mail*> mail = counted_.wait();
  ADDEND_TRY(mail);
  return (*mail)->numbers[0];
}

uint64_t DeviceBloom::memory_bytes() const {
  return filter_.capacity() + found_.capacity() + scratch_.capacity();
}

}  // namespace addend::index
