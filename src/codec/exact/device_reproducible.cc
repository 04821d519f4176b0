// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/device_reproducible.h"

#include "base/bits.h"

namespace addend::exact {

DeviceReproducible::DeviceReproducible(const cuda::Device& device, const Layout& layout,
                                       double tolerance)
    : device_(device),
      layout_(layout),
      counted_(device),
      lanes_(device.runtime),
      blocks_(device.runtime),
      before_(device.runtime),
      groups_(device.runtime),
      tickets_(device.runtime),
      narrow_(device.runtime),
      wide_(device.runtime) {
  call_.dtype = layout.dtype;
  call_.count = layout.count;
  call_.rules = RangeRules::of(layout.world, tolerance);
}

Status DeviceReproducible::open() {
  const auto found = cuda::part<ReproducibleKernels>();
  ADDEND_TRY(found);
  kernels_ = *found;
  ADDEND_TRY(counted_.open());
  ADDEND_TRY(tickets_.reserve(sizeof(uint32_t)));
  call_.tickets = tickets_.as<uint32_t>();
  return device_.check(
      device_.runtime->fill(tickets_.as<void>(), 0, sizeof(uint32_t), device_.stream),
      "clearing tickets");
}

Status DeviceReproducible::open_ranges(const void* gradient, const uint64_t* bitmap,
                                       const void* kept, Round& round) {
  const uint64_t blocks = ceil_div(layout_.count, kRangeBlock);
  ADDEND_TRY(lanes_.reserve(blocks * kRangeLanes * sizeof(uint32_t)));
  ADDEND_TRY(blocks_.reserve(blocks * sizeof(RangeBlock)));
  ADDEND_TRY(before_.reserve(blocks * sizeof(RangeSums)));
  ADDEND_TRY(groups_.reserve(ceil_div(blocks, kRangeGroup) * sizeof(RangeSums)));
  call_.lanes = lanes_.as<uint32_t>();
  call_.blocks = blocks_.as<RangeBlock>();
  call_.before = before_.as<RangeSums>();
  call_.groups = groups_.as<RangeSums>();
  const MeasureCall measure{layout_.dtype, gradient, layout_.count,
                            bitmap,        kept,     lanes_.as<uint32_t>()};
  ADDEND_TRY(device_.check(kernels_->measure(measure, device_.stream), "measuring ranges"));
  round.add({Op::kMaxU32, blocks * kRangeLanes, lanes_.as<void>(), nullptr, nullptr});
  return {};
}

Status DeviceReproducible::count(const uint64_t* bitmap) {
  call_.bitmap = bitmap;
  return device_.check(
      kernels_->count(call_, counted_.address(), counted_.expect(), device_.stream),
      "counting ranges");
}

Status DeviceReproducible::pack(const void* values, Round& round) {
  const Result<const cuda::Mail*> mail = counted_.wait();
  ADDEND_TRY(mail);
  const uint64_t narrow = (*mail)->numbers[1], wide = (*mail)->numbers[2];
  escaped_ = (*mail)->numbers[3];
  // Sums of unions that grow a little find room.
  if (narrow * sizeof(int32_t) > narrow_.capacity())
    ADDEND_TRY(narrow_.reserve((narrow + narrow / 4) * sizeof(int32_t)));
  if (wide * sizeof(int64_t) > wide_.capacity())
    ADDEND_TRY(wide_.reserve((wide + wide / 4) * sizeof(int64_t)));
  call_.narrow = narrow_.as<int32_t>();
  call_.wide = wide_.as<int64_t>();
  call_.values = const_cast<void*>(values);  // is read
  ADDEND_TRY(device_.check(kernels_->pack(call_, device_.stream), "packing integers"));
  if (narrow > 0) round.add({Op::kSumI32, narrow, narrow_.as<void>(), nullptr, nullptr});
  if (wide > 0) round.add({Op::kSumI64, wide, wide_.as<void>(), nullptr, nullptr});
  return {};
}

Status DeviceReproducible::unpack(float scale, void* values) {
  call_.scale = scale;
  call_.values = values;
  return device_.check(kernels_->unpack(call_, device_.stream), "unpacking integers");
}

uint64_t DeviceReproducible::memory_bytes() const {
  uint64_t total = 0;
  for (const cuda::DeviceBuffer* buffer :
       {&lanes_, &blocks_, &before_, &groups_, &tickets_, &narrow_, &wide_})
    total += buffer->capacity();
  return total;
}

}  // namespace addend::exact
