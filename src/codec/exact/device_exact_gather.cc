// SPDX-License-Identifier: Apache-2.0
// The rounds of DeviceExactCodec in gather mode: as exact_gather.cc.
#include <algorithm>
#include <string>

#include "codec/exact/device_exact_codec.h"
#include "codec/exact/own.h"
#include "codec/index/union_index.h"

namespace addend::exact {

Status DeviceExactCodec::open_sizes(Round& round) {
  const uint32_t world = layout().world, worker = layout().worker;
  ADDEND_TRY(scan());
  ADDEND_TRY(count_union(layout().count));  // whose bitmap is this worker's still
  ADDEND_TRY(own_.measure(local_.as<uint64_t>(), layout().count));
  const Result<const uint64_t*> found = take_count();
  ADDEND_TRY(found);
  nonzeros_ = draft().local_nonzeros = union_;
  const Result<uint64_t> bytes = own_.index_bytes();
  ADDEND_TRY(bytes);
  index_bytes_ = *bytes;
  own_size_ =
      nonzeros_ == 0 ? 0 : DeviceOwn::value_lane(index_bytes_) + ceil_div(nonzeros_ * width(), 8);
  ADDEND_TRY(sizes_.reserve(world * uint64_t{8}));
  ADDEND_TRY(host_sizes_.reserve(world * uint64_t{8}));
  auto* sizes = host_sizes_.host<uint64_t>();
  std::fill_n(sizes, world, 0);
  sizes[worker] = own_size_;
  ADDEND_TRY(device_.check(
      device_.runtime->copy(sizes_.as<void>(), sizes, world * uint64_t{8}, device_.stream),
      "copying sizes"));
  bounds_.resize(world + uint64_t{1});
  for (uint32_t w = 0; w <= world; ++w)
    bounds_[w] = w;
  round.add({Op::kOrU64, world, sizes_.as<void>(), nullptr, nullptr, bounds_.data()});
  waiting_ = Waiting::kSizes;
  return {};
}

Result<bool> DeviceExactCodec::close_sizes(Round& round) {
  const uint32_t world = layout().world, worker = layout().worker;
  auto* sizes = host_sizes_.host<uint64_t>();
  ADDEND_TRY(device_.check(
      device_.runtime->copy(sizes, sizes_.as<void>(), world * uint64_t{8}, device_.stream),
      "copying sizes"));
  ADDEND_TRY(device_.check(device_.runtime->synchronize(device_.stream), "copying sizes"));
  ADDEND_TRY(bound_messages({sizes, world}, layout(), own_size_, bounds_));
  waiting_ = Waiting::kMessages;
  const uint64_t lanes = bounds_.back();
  if (lanes == 0) return close_messages();
  if (lanes * 8 > messages_.capacity()) ADDEND_TRY(messages_.reserve((lanes + lanes / 4) * 8));
  auto* plane = messages_.as<uint64_t>();
  ADDEND_TRY(device_.check(device_.runtime->fill(plane, 0, lanes * 8, device_.stream),
                           "clearing messages"));
  if (own_size_ > 0) {
    uint64_t* own = plane + bounds_[worker];
    ADDEND_TRY(own_.write(nonzeros_, index_bytes_, own));
    ADDEND_TRY(pack_values(nonzeros_, own + DeviceOwn::value_lane(index_bytes_)));
  }
  round.add({Op::kOrU64, lanes, plane, nullptr, nullptr, bounds_.data()});
  round.last = true;
  return true;
}

Result<bool> DeviceExactCodec::close_messages() {
  waiting_ = Waiting::kLast;
  ADDEND_TRY(own_.read(layout().dtype, layout().count, messages_.as<uint64_t>(), bounds_,
                       bitmap_.as<uint64_t>()));
  ADDEND_TRY(count_union(layout().count));
  ADDEND_TRY(take_count());
  return false;
}

}  // namespace addend::exact
