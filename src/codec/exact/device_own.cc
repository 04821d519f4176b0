// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/device_own.h"

#include "base/bits.h"
#include "codec/exact/own.h"

namespace addend::exact {

DeviceOwn::DeviceOwn(const cuda::Device& device, const index::IndexKernels& kernels)
    : device_(device),
      message_(device, kernels),
      measured_(device),
      read_(device),
      tiles_(device.runtime),
      groups_(device.runtime),
      pieces_(device.runtime),
      broken_(device.runtime) {}

Status DeviceOwn::open() {
  const auto found = cuda::part<OwnKernels>();
  ADDEND_TRY(found);
  kernels_ = *found;
  ADDEND_TRY(message_.open());
  ADDEND_TRY(measured_.open());
  ADDEND_TRY(read_.open());
  return broken_.reserve(sizeof(uint32_t));
}

Status DeviceOwn::measure(const uint64_t* bitmap, uint64_t count) {
  ADDEND_TRY(tiles_.reserve(ceil_div(count, kOwnTile) * sizeof(OwnTile)));
  ADDEND_TRY(groups_.reserve(own_groups(count) * sizeof(OwnTile)));
  call_ = {bitmap, count, tiles_.as<OwnTile>(), groups_.as<OwnTile>(), nullptr, 0, 0};
  return device_.check(
      kernels_->measure(call_, measured_.address(), measured_.expect(), device_.stream),
      "measuring a message");
}

Result<uint64_t> DeviceOwn::index_bytes() const {
  const Result<const cuda::Mail*> mail = measured_.wait();
  ADDEND_TRY(mail);
  return (*mail)->numbers[0];
}

uint64_t DeviceOwn::value_lane(uint64_t index_bytes) {
  constexpr uint64_t kHeaderLanes = 2;
  return kHeaderLanes + ceil_div(index_bytes, 8);
}

Status DeviceOwn::write(uint64_t nonzeros, uint64_t index_bytes, uint64_t* lanes) {
  call_.lanes = lanes;
  call_.nonzeros = nonzeros;
  call_.bytes = index_bytes;
  return device_.check(kernels_->write(call_, device_.stream), "writing a message");
}

// Its positions, counted.
Status DeviceOwn::open_message(DType dtype, uint64_t count, std::span<const uint64_t> lanes) {
  ADDEND_TRY(message_.reserve(dtype_bytes(dtype), count));
  ADDEND_TRY(pieces_.reserve(2 * own_pieces(lanes.size()) * sizeof(OwnPiece)));
  ADDEND_TRY(device_.check(
      device_.runtime->fill(message_.bitmap(), 0, words_for(count) * 8, device_.stream),
      "clearing bits"));
  const ReadOwnCall call{lanes.data(),          lanes.size(),           count,
                         dtype_bytes(dtype),    pieces_.as<OwnPiece>(), message_.bitmap(),
                         broken_.as<uint32_t>()};
  ADDEND_TRY(device_.check(kernels_->read(call, device_.stream), "reading a message"));
  return message_.count();
}

Status DeviceOwn::read(DType dtype, uint64_t count, const uint64_t* messages,
                       std::span<const uint64_t> bounds, uint64_t* bitmap) {
  ADDEND_TRY(device_.check(
      device_.runtime->fill(broken_.as<void>(), 0, sizeof(uint32_t), device_.stream), "clearing"));
  ADDEND_TRY(device_.check(device_.runtime->fill(bitmap, 0, words_for(count) * 8, device_.stream),
                           "clearing bits"));
  for (std::size_t w = 0; w + 1 < bounds.size(); ++w) {
    const std::span<const uint64_t> lanes(messages + bounds[w], bounds[w + 1] - bounds[w]);
    if (lanes.empty()) continue;
    if (lanes.size() < value_lane(0)) return no_message();
    ADDEND_TRY(open_message(dtype, count, lanes));
    ADDEND_TRY(device_.check(
        kernels_->merge(message_.bitmap(), words_for(count), bitmap, device_.stream), "merging"));
  }
  ADDEND_TRY(device_.check(
      kernels_->tell(broken_.as<uint32_t>(), read_.address(), read_.expect(), device_.stream),
      "reading messages"));
  const Result<const cuda::Mail*> mail = read_.wait();
  ADDEND_TRY(mail);
  if ((*mail)->numbers[0] != 0) return no_message();
  return {};
}

Status DeviceOwn::add_to(DType dtype, uint64_t count, const uint64_t* messages,
                         std::span<const uint64_t> bounds, void* gradient) {
  ADDEND_TRY(
      device_.check(device_.runtime->fill(gradient, 0, count * dtype_bytes(dtype), device_.stream),
                    "clearing a gradient"));
  for (std::size_t w = 0; w + 1 < bounds.size(); ++w) {
    const std::span<const uint64_t> lanes(messages + bounds[w], bounds[w + 1] - bounds[w]);
    if (lanes.empty()) continue;
    ADDEND_TRY(open_message(dtype, count, lanes));
    const AddOwnCall call{dtype, message_.counted(), lanes.data(), gradient};
    ADDEND_TRY(device_.check(kernels_->add(call, device_.stream), "adding a message"));
  }
  return {};
}

uint64_t DeviceOwn::memory_bytes() const {
  return message_.memory_bytes() + tiles_.capacity() + groups_.capacity() + pieces_.capacity() +
         broken_.capacity();
}

}  // namespace addend::exact
