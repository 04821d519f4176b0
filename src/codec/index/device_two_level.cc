// SPDX-License-Identifier: Apache-2.0
#include "codec/index/device_two_level.h"

#include <algorithm>

#include "base/bits.h"
#include "codec/index/union_index.h"

namespace addend::index {
namespace {

constexpr uint32_t kBitWidth = 4;        // element bits are counted in tiles of 1024
constexpr uint64_t kReadablePast = 128;  // bytes

// What counts find lies side by side: of blocks, then of element bits.
struct BothTotals {
  BlockTotals blocks;
  Totals elements;
  uint64_t survey[2 * kMostSizes];
};

}  // namespace

DeviceTwoLevel::DeviceTwoLevel(const cuda::Device& device, const IndexKernels& kernels)
    : device_(device),
      kernels_(kernels),
      counted_(device),
      surveyed_(device),
      live_(device.runtime),
      partial_(device.runtime),
      local_live_(device.runtime),
      before_(device.runtime),
      groups_(device.runtime),
      totals_(device.runtime),
      elements_(device.runtime),
      local_elements_(device.runtime),
      offsets_(device.runtime),
      bases_(device.runtime) {}

Status DeviceTwoLevel::open() {
  const auto found = cuda::part<TwoLevelKernels>();
  ADDEND_TRY(found);
  blocks_ = *found;
  ADDEND_TRY(counted_.open());
  ADDEND_TRY(surveyed_.open());
  return totals_.reserve(sizeof(BothTotals));
}

Status DeviceTwoLevel::open_blocks(DType dtype, const void* gradient, uint64_t count,
                                   uint64_t block, Round& round) {
  const uint64_t words = words_for(ceil_div(count, block));
  for (cuda::DeviceBuffer* buffer : {&live_, &partial_, &local_live_})
    ADDEND_TRY(buffer->reserve(words * 8));
  ADDEND_TRY(before_.reserve(words * sizeof(BlockSums)));
  ADDEND_TRY(groups_.reserve(ceil_div(words, kGroupWords) * sizeof(BlockSums)));
  call_.dtype = dtype;
  call_.gradient = gradient;
  call_.count = count;
  call_.block = block;
  call_.live = live_.as<uint64_t>();
  call_.partial = partial_.as<uint64_t>();
  call_.local_live = local_live_.as<uint64_t>();
  call_.before = before_.as<BlockSums>();
  call_.groups = groups_.as<BlockSums>();
  call_.totals = &totals_.as<BothTotals>()->blocks;
  call_.element_totals = &totals_.as<BothTotals>()->elements;
  call_.counted = false;
  left_out_ = false;
  ADDEND_TRY(device_.check(
      device_.runtime->fill(totals_.as<void>(), 0, sizeof(BothTotals), device_.stream),
      "clearing totals"));
  ADDEND_TRY(device_.check(blocks_->scan(call_, device_.stream), "looking for live blocks"));
  round.add({Op::kOrU64, words, live_.as<void>(), nullptr, nullptr});
  round.add({Op::kOrU64, words, partial_.as<void>(), nullptr, nullptr});
  return {};
}

Status DeviceTwoLevel::reserve_elements(uint64_t bits) {
  call_.element_room = 0;  // if one of these fails, what is there is gone
  for (cuda::DeviceBuffer* buffer : {&elements_, &local_elements_})
    ADDEND_TRY(buffer->reserve(words_for(bits) * 8 + kReadablePast));
  ADDEND_TRY(offsets_.reserve(tiles_for(kBitWidth, bits) * sizeof(uint32_t)));
  ADDEND_TRY(bases_.reserve(ceil_div(bits, kGroupBits) * sizeof(uint64_t)));
  call_.elements = elements_.as<uint64_t>();
  call_.local_elements = local_elements_.as<uint64_t>();
  call_.element_room = bits;
  call_.offsets = offsets_.as<uint32_t>();
  call_.bases = bases_.as<uint64_t>();
  return {};
}

Status DeviceTwoLevel::pack_ahead(const PackedValues& values) {
  packed_ = std::min(values.buffer->capacity() / dtype_bytes(call_.dtype), values.most);
  if (packed_ == 0) return {};
  call_.factor = values.factor;
  call_.values = values.buffer->as<void>();
  call_.value_room = packed_;
  return device_.check(blocks_->pack(call_, device_.stream), "packing values");
}

Result<bool> DeviceTwoLevel::close_blocks(const PackedValues& values, Round& round) {
  ADDEND_TRY(
      device_.check(blocks_->count(call_, counted_.address(), counted_.expect(), device_.stream),
                    "counting live blocks"));
  if (call_.element_room > 0)
    ADDEND_TRY(device_.check(blocks_->mark(call_, device_.stream), "marking elements"));
  ADDEND_TRY(pack_ahead(values));
  const Result<const cuda::Mail*> mail = counted_.wait();
  ADDEND_TRY(mail);
  const uint64_t* found = (*mail)->numbers;
  size_ = found[0];
  nonzeros_ = found[2];
  negative_zeros_ = found[3] != 0;
  if (found[4] != 0 && !left_out_) return lost_index_bits();
  const uint64_t bits = found[1];
  if (bits == 0) return false;
  if (bits > call_.element_room) {
    // Sums of blocks that grow a little find room.
    ADDEND_TRY(reserve_elements(bits + bits / 4));
    ADDEND_TRY(device_.check(blocks_->mark(call_, device_.stream), "marking elements"));
  }
  round.add({Op::kOrU64, words_for(bits), elements_.as<void>(), nullptr, nullptr});
  element_bits_ = bits;
  return true;
}

Status DeviceTwoLevel::close_elements(const PackedValues& values) {
  auto* totals = &totals_.as<BothTotals>()->elements;
  const CountCall call{kBitWidth,
                       element_bits_,
                       elements_.as<uint64_t>(),
                       local_elements_.as<uint64_t>(),
                       offsets_.as<uint32_t>(),
                       bases_.as<uint64_t>(),
                       0,
                       totals,
                       counted_.address(),
                       counted_.expect()};
  ADDEND_TRY(device_.check(kernels_.count(call, device_.stream), "counting elements"));
  call_.counted = true;
  ADDEND_TRY(pack_ahead(values));
  const Result<const cuda::Mail*> mail = counted_.wait();
  ADDEND_TRY(mail);
  size_ += (*mail)->numbers[0];
  return (*mail)->numbers[3] == 0 || left_out_ ? Status() : lost_index_bits();
}

Status DeviceTwoLevel::pack(const PackedValues& values) {
  if (size_ <= packed_) return {};
  // A union that grows a little finds room.
  ADDEND_TRY(values.buffer->reserve((size_ + size_ / 4) * dtype_bytes(call_.dtype)));
  return pack_ahead(values);
}

Status DeviceTwoLevel::unpack(const void* sums, bool zeros_stand, void* gradient) {
  TwoLevelCall call = call_;
  call.values = const_cast<void*>(sums);  // is read
  return device_.check(blocks_->unpack(call, !zeros_stand, gradient, device_.stream),
                       "unpacking values");
}

Status DeviceTwoLevel::write_union(uint64_t* bitmap) {
  const uint64_t bytes = words_for(call_.count) * 8;
  ADDEND_TRY(device_.check(device_.runtime->fill(bitmap, 0, bytes, device_.stream), "clearing"));
  return device_.check(blocks_->write_union(call_, bitmap, device_.stream), "writing a union");
}

Status DeviceTwoLevel::ask(const uint64_t* bitmap, uint64_t count,
                           std::span<const uint64_t> sizes) {
  SurveyCall call{};
  call.bitmap = bitmap;
  call.count = count;
  call.size_count = static_cast<uint32_t>(std::min<uint64_t>(sizes.size(), kMostSizes));
  std::copy_n(sizes.begin(), call.size_count, call.sizes);
  call.scratch = totals_.as<BothTotals>()->survey;
  call.mail = surveyed_.address();
  call.sequence = surveyed_.expect();
  return device_.check(blocks_->survey(call, device_.stream), "counting blocks");
}

Result<std::span<const uint64_t>> DeviceTwoLevel::answer() const {
  const Result<const cuda::Mail*> mail = surveyed_.wait();
  ADDEND_TRY(mail);
  return std::span<const uint64_t>((*mail)->numbers, 2 * kMostSizes);
}

uint64_t DeviceTwoLevel::memory_bytes() const {
  uint64_t total = 0;
  for (const cuda::DeviceBuffer* buffer :
       {&live_, &partial_, &local_live_, &before_, &groups_, &totals_, &elements_, &local_elements_,
        &offsets_, &bases_})
    total += buffer->capacity();
  return total;
}

}  // namespace addend::index
