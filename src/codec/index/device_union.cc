// SPDX-License-Identifier: Apache-2.0
#include "codec/index/device_union.h"

#include "base/bits.h"
#include "codec/index/union_index.h"

namespace addend::index {

DeviceUnion::DeviceUnion(const cuda::Device& device, const IndexKernels& kernels,
                         const Layout& layout)
    : device_(device),
      kernels_(kernels),
      layout_(layout),
      two_level_(device, kernels),
      counted_(device),
      cut_(device),
      sizes_(device.runtime),
      bounds_(device.runtime),
      local_(device.runtime),
      bitmap_(device.runtime),
      offsets_(device.runtime),
      bases_(device.runtime),
      totals_(device.runtime),
      unused_(device.runtime) {}

uint64_t DeviceUnion::bits() const {
  return tiles_for(width(), layout_.count) * tile_elements(width());
}

Status DeviceUnion::open() {
  const auto found = cuda::part<UnionKernels>();
  ADDEND_TRY(found);
  of_union_ = *found;
  ADDEND_TRY(two_level_.open());
  ADDEND_TRY(counted_.open());
  ADDEND_TRY(cut_.open());
  ADDEND_TRY(totals_.reserve(sizeof(Totals)));
  ADDEND_TRY(bitmap_.reserve(bits() / 8));
  ADDEND_TRY(offsets_.reserve(tiles_for(width(), layout_.count) * sizeof(uint32_t)));
  ADDEND_TRY(bases_.reserve(ceil_div(layout_.count, kGroupBits) * sizeof(uint64_t)));
  if (segments() == 0) return {};
  std::vector<uint64_t> bounds;
  uint64_t end = 0;
  for (const Segment& segment : layout_.segments)
    bounds.push_back(end += segment.count);
  ADDEND_TRY(sizes_.reserve(segments() * 8));
  ADDEND_TRY(bounds_.reserve(segments() * 8));
  ADDEND_TRY(device_.check(
      device_.runtime->copy(bounds_.as<void>(), bounds.data(), segments() * 8, device_.stream),
      "copying bounds"));
  return device_.check(device_.runtime->synchronize(device_.stream), "copying bounds");
}

// A step that was cut short may have left some.
Status DeviceUnion::start(const void* gradient) {
  gradient_ = gradient;
  size_ = nonzeros_ = 0;
  by_blocks_ = left_out_ = negative_zeros_ = false;
  return device_.check(device_.runtime->fill(totals_.as<void>(), 0, sizeof(Totals), device_.stream),
                       "clearing totals");
}

Status DeviceUnion::open_bitmap(const void* gradient, Round& round) {
  ADDEND_TRY(start(gradient));
  ADDEND_TRY(local_.reserve(bits() / 8));
  const ScanCall call{width(),
                      gradient,
                      layout_.count,
                      local_.as<uint64_t>(),
                      bitmap_.as<uint64_t>(),
                      nullptr,
                      totals_.as<Totals>()};
  ADDEND_TRY(device_.check(kernels_.scan(call, device_.stream), "scanning a gradient"));
  round.add({Op::kOrU64, words_for(layout_.count), bitmap_.as<void>(), nullptr, nullptr});
  waiting_ = Waiting::kBitmap;
  return {};
}

Status DeviceUnion::open_blocks(const void* gradient, uint64_t block, Round& round) {
  ADDEND_TRY(start(gradient));
  by_blocks_ = true;
  waiting_ = Waiting::kBlocks;
  return two_level_.open_blocks(layout_.dtype, gradient, layout_.count, block, round);
}

Result<bool> DeviceUnion::close(bool left_out, Round& round) {
  left_out_ = left_out;
  if (waiting_ == Waiting::kBlocks) {
    const Result<bool> elements = close_blocks(round);
    ADDEND_TRY(elements);
    if (*elements) return true;
  } else if (waiting_ == Waiting::kElements) {
    ADDEND_TRY(two_level_.close_elements({1, 0, &unused_}));
  }
  ADDEND_TRY(count(left_out));
  return false;
}

Result<bool> DeviceUnion::close_blocks(Round& round) {
  if (left_out_) two_level_.leave_out();
  const Result<bool> elements = two_level_.close_blocks({1, 0, &unused_}, round);
  ADDEND_TRY(elements);
  nonzeros_ = two_level_.nonzeros();
  negative_zeros_ = two_level_.negative_zeros();
  waiting_ = Waiting::kElements;
  return elements;
}

// In two levels the union is all of its own bitmap, and the host knows its size.
Status DeviceUnion::count(bool left_out) {
  if (by_blocks_) ADDEND_TRY(two_level_.write_union(bitmap_.as<uint64_t>()));
  const CountCall call{width(),
                       layout_.count,
                       bitmap_.as<uint64_t>(),
                       by_blocks_ ? bitmap_.as<uint64_t>() : local_.as<uint64_t>(),
                       offsets_.as<uint32_t>(),
                       bases_.as<uint64_t>(),
                       layout_.count / kKeptShare,
                       totals_.as<Totals>(),
                       counted_.address(),
                       counted_.expect()};
  ADDEND_TRY(device_.check(kernels_.count(call, device_.stream), "counting a union"));
  if (segments() > 1) {
    const SegmentCall cut{counted_union(),           bounds_.as<uint64_t>(), segments(),
                          sizes_.device<uint64_t>(), cut_.address(),         cut_.expect()};
    ADDEND_TRY(device_.check(of_union_->segments(cut, device_.stream), "counting segments"));
    ADDEND_TRY(cut_.wait());
  }
  size_ = two_level_.size();
  if (!by_blocks_) ADDEND_TRY(read_count(left_out));
  if (segments() == 1) *sizes_.host<uint64_t>() = size_;
  return {};
}

Status DeviceUnion::read_count(bool left_out) {
  const Result<const cuda::Mail*> mail = counted_.wait();
  ADDEND_TRY(mail);
  const uint64_t* found = (*mail)->numbers;
  size_ = found[0];
  nonzeros_ = found[1];
  negative_zeros_ = found[2] != 0;
  if (found[3] != 0 && !left_out) return lost_index_bits();
  return {};
}

CountedUnion DeviceUnion::counted_union() const {
  return {width(),
          layout_.count,
          bitmap_.as<uint64_t>(),
          offsets_.as<uint32_t>(),
          bases_.as<uint64_t>(),
          totals_.as<Totals>()};
}

// Two levels, and a worker that is left out, read the gradient as it is.
Status DeviceUnion::gather(const float* residual, float* owed, float* values) const {
  const GatherCall call{counted_union(), layout_.dtype, gradient_, by_blocks_ || left_out_,
                        residual,        owed,          values};
  return device_.check(of_union_->gather(call, device_.stream), "gathering values");
}

Status DeviceUnion::put(const float* values, float* array) const {
  return device_.check(of_union_->put(counted_union(), values, array, device_.stream),
                       "keeping what is owed");
}

Status DeviceUnion::scatter(const void* values, void* gradient) {
  const bool zeros_stand = gradient == gradient_ && !negative_zeros_ && !left_out_;
  if (size_ == 0) {
    if (zeros_stand) return {};
    return device_.check(
        device_.runtime->fill(gradient, 0, layout_.count * width(), device_.stream),
        "clearing a gradient");
  }
  if (by_blocks_) return two_level_.unpack(values, zeros_stand, gradient);
  const UnpackCall call{width(),
                        values,
                        bitmap_.as<uint64_t>(),
                        offsets_.as<uint32_t>(),
                        bases_.as<uint64_t>(),
                        layout_.count,
                        !zeros_stand,
                        gradient};
  return device_.check(kernels_.unpack(call, device_.stream), "unpacking values");
}

Status DeviceUnion::ask(std::span<const uint64_t> sizes) {
  return two_level_.ask(bitmap_.as<uint64_t>(), layout_.count, sizes);
}

uint64_t DeviceUnion::memory_bytes() const {
  uint64_t total = two_level_.memory_bytes() + sizes_.capacity();
  for (const cuda::DeviceBuffer* buffer :
       {&bounds_, &local_, &bitmap_, &offsets_, &bases_, &totals_})
    total += buffer->capacity();
  return total;
}

}  // namespace addend::index
