// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/device_exact.h"

#include <algorithm>
#include <limits>

#include "codec/dense/device_dense.h"
#include "codec/exact/device_exact_codec.h"
#include "codec/index/union_index.h"

namespace addend::exact {

DeviceExactCodec::DeviceExactCodec(const Layout& layout, const Options& options,
                                   const cuda::Device& device, const index::IndexKernels& kernels)
    : SteppedCodec(layout),
      plan_(this->layout(), options),
      device_(device),
      kernels_(kernels),
      two_level_(device, kernels),
      bloom_(device),
      reproducible_(device, this->layout(), options.tolerance),
      sketch_(device, kernels, this->layout()),
      own_(device, kernels),
      counted_(device),
      looked_(device),
      local_(device.runtime),
      bitmap_(device.runtime),
      kept_(device.runtime),
      offsets_(device.runtime),
      bases_(device.runtime),
      totals_(device.runtime),
      sizes_(device.runtime),
      messages_(device.runtime),
      host_sizes_(device.runtime),
      values_(device.runtime) {}

Status DeviceExactCodec::open() {
  const cuda::OnDevice here(device_);
  ADDEND_TRY(counted_.open());
  ADDEND_TRY(looked_.open());
  ADDEND_TRY(two_level_.open());
  const Mode asked = plan_.options().mode;  // auto on a device never comes to one of these
  if (asked == Mode::kBloom) ADDEND_TRY(bloom_.open());
  if (asked == Mode::kSketch) ADDEND_TRY(sketch_.open());
  if (asked == Mode::kGather) ADDEND_TRY(own_.open());
  if (reproducible()) ADDEND_TRY(reproducible_.open());
  return totals_.reserve(sizeof(index::Totals) + sizeof(uint64_t));
}

uint64_t DeviceExactCodec::memory_bytes() const {
  uint64_t total = two_level_.memory_bytes() + bloom_.memory_bytes() +
                   reproducible_.memory_bytes() + sketch_.memory_bytes() + own_.memory_bytes();
  for (const cuda::DeviceBuffer* buffer :
       {&local_, &bitmap_, &kept_, &offsets_, &bases_, &totals_, &sizes_, &messages_, &values_})
    total += buffer->capacity();
  return total;
}

Status DeviceExactCodec::do_begin(const void* gradient) {
  settled();
  ADDEND_TRY(settling_);
  gradient_ = gradient;
  waiting_ = Waiting::kNothing;
  dense_plane_ = nullptr;
  union_ = selected_ = packed_ = 0;
  fix_up_count_ = top_ = 0;
  negative_zeros_ = false_positions_ = peeled_ = false;
  draft().mode = mode_name(mode());
  const bool sized = plan_.options().mode == Mode::kSketch || plan_.options().mode == Mode::kBloom;
  if (sized && plan_.seen().nonzeros == Observation::kUnknown) draft().fallback = "first-step";
  return {};
}

Result<bool> DeviceExactCodec::do_round(Round& round) {
  if (layout().count == 0) return false;
  const cuda::OnDevice here(device_);
  switch (waiting_) {
    case Waiting::kNothing:
      ADDEND_TRY(open_step(round));
      return true;
    case Waiting::kIndex:
      return close_index(round);
    case Waiting::kBlocks:
      return close_blocks(round);
    case Waiting::kElements:
      return close_elements(round);
    case Waiting::kFilter:
      return close_filter(round);
    case Waiting::kFound:
      return close_found(round);
    case Waiting::kRanges:
      ADDEND_TRY(open_sketch(round));
      return true;
    case Waiting::kSketch:
      return close_sketch(round);
    case Waiting::kSizes:
      return close_sizes(round);
    case Waiting::kMessages:
      return close_messages();
    case Waiting::kLast:
      return false;
  }
  return false;
}

Status DeviceExactCodec::open_step(Round& round) {
  if (mode() == Mode::kDense) return open_dense(round);
  if (mode() == Mode::kGather) return open_sizes(round);
  if (mode() == Mode::kTwoLevel) {
    ADDEND_TRY(open_blocks(round));
  } else if (mode() == Mode::kBloom) {
    ADDEND_TRY(open_filter(round));
  } else if (mode() == Mode::kSketch) {
    ADDEND_TRY(scan());
    if (!reproducible()) return open_sketch(round);
    waiting_ = Waiting::kRanges;
  } else {
    ADDEND_TRY(open_index(round));
  }
  if (!reproducible()) return {};
  const bool scanned = mode() != Mode::kTwoLevel;
  return reproducible_.open_ranges(gradient_, scanned ? local_.as<uint64_t>() : nullptr,
                                   kept_.as<void>(), round);
}

Status DeviceExactCodec::open_dense(Round& round) {
  const Result<void*> plane =
      add_dense_plane(layout(), {gradient_, lent()}, device_, values_, round);
  ADDEND_TRY(plane);
  dense_plane_ = *plane;
  waiting_ = Waiting::kLast;
  return {};
}

// ---- the index

Status DeviceExactCodec::open_blocks(Round& round) {
  // The survey at the end of a step wants the union as a bitmap, and must not fail then.
  if (plan_.options().mode == Mode::kAuto || reproducible())
    ADDEND_TRY(bitmap_.reserve(words_for(layout().count) * 8));
  waiting_ = Waiting::kBlocks;
  return two_level_.open_blocks(layout().dtype, gradient_, layout().count, plan_.seen().block,
                                round);
}

Status DeviceExactCodec::open_index(Round& round) {
  ADDEND_TRY(scan());
  round.add({Op::kOrU64, words_for(layout().count), bitmap_.as<void>(), nullptr, nullptr});
  waiting_ = Waiting::kIndex;
  return {};
}

Status DeviceExactCodec::open_filter(Round& round) {
  ADDEND_TRY(scan());
  waiting_ = Waiting::kFilter;
  return bloom_.open_filter(plan_.filter(), local_.as<uint64_t>(), layout().count, round);
}

Status DeviceExactCodec::reserve_bitmaps() {
  const uint64_t count = layout().count, tiles = index::tiles_for(width(), count);
  const uint64_t bits = tiles * index::tile_elements(width());
  ADDEND_TRY(local_.reserve(bits / 8));
  ADDEND_TRY(bitmap_.reserve(bits / 8));
  ADDEND_TRY(reserve_kept(tiles * index::kSlotBytes));
  ADDEND_TRY(offsets_.reserve(tiles * sizeof(uint32_t)));
  return bases_.reserve(ceil_div(count, index::kGroupBits) * sizeof(uint64_t));
}

// Slots are read before it is known whether they hold something.
Status DeviceExactCodec::reserve_kept(uint64_t bytes) {
  if (bytes <= kept_.capacity()) return {};
  ADDEND_TRY(kept_.reserve(bytes));
  return device_.check(device_.runtime->fill(kept_.as<void>(), 0, bytes, device_.stream),
                       "clearing slots");
}

Status DeviceExactCodec::scan() {
  ADDEND_TRY(reserve_bitmaps());
  const index::ScanCall call{width(),
                             gradient_,
                             layout().count,
                             local_.as<uint64_t>(),
                             bitmap_.as<uint64_t>(),
                             kept_.as<void>(),
                             totals_.as<index::Totals>()};
  if (!cleared_)
    ADDEND_TRY(device_.check(
        device_.runtime->fill(totals_.as<void>(), 0, sizeof(index::Totals), device_.stream),
        "clearing totals"));
  cleared_ = false;
  return device_.check(kernels_.scan(call, device_.stream), "scanning a gradient");
}

Status DeviceExactCodec::count_union(uint64_t few) {
  const index::CountCall call{width(),
                              layout().count,
                              bitmap_.as<uint64_t>(),
                              local_.as<uint64_t>(),
                              offsets_.as<uint32_t>(),
                              bases_.as<uint64_t>(),
                              few,
                              totals_.as<index::Totals>(),
                              counted_.address(),
                              counted_.expect()};
  return device_.check(kernels_.count(call, device_.stream), "counting a union");
}

// Values are packed while the host waits for their number, if the last union's room is enough.
Status DeviceExactCodec::pack_ahead() {
  packed_ = values_.capacity() / width();
  if (packed_ == 0) return {};
  return pack_values(std::min(packed_, most_packed()), values_.as<void>());
}

// What the count found.
Result<const uint64_t*> DeviceExactCodec::take_count() {
  const Result<const cuda::Mail*> mail = counted_.wait();
  ADDEND_TRY(mail);
  cleared_ = true;
  const uint64_t* found = (*mail)->numbers;
  union_ = selected_ = draft().union_nonzeros = found[0];
  if (found[3] != 0) return index::lost_index_bits();
  return found;
}

index::CountedUnion DeviceExactCodec::counted_union() const {
  return {width(),
          layout().count,
          bitmap_.as<uint64_t>(),
          offsets_.as<uint32_t>(),
          bases_.as<uint64_t>(),
          totals_.as<index::Totals>()};
}

Result<bool> DeviceExactCodec::close_index(Round& round) {
  ADDEND_TRY(count_union(layout().count / index::kKeptShare));
  ADDEND_TRY(pack_ahead());
  const Result<const uint64_t*> found = take_count();
  ADDEND_TRY(found);
  draft().local_nonzeros = (*found)[1];
  negative_zeros_ = (*found)[2] != 0;
  return open_values(round);
}

// Where the filter is wrong there is nothing to send: -0.0s travel as +0.0. A filter that the union
// outgrew holds many false positions: then all are asked for first.
Result<bool> DeviceExactCodec::close_filter(Round& round) {
  ADDEND_TRY(bloom_.find(bitmap_.as<uint64_t>()));
  ADDEND_TRY(count_union(std::numeric_limits<uint64_t>::max()));
  ADDEND_TRY(pack_ahead());
  const Result<const uint64_t*> found = take_count();
  ADDEND_TRY(found);
  draft().local_nonzeros = (*found)[1];
  negative_zeros_ = (*found)[2] != 0;
  false_positions_ = true;
  const Result<double> expected = bloom_.false_positions(union_);
  ADDEND_TRY(expected);
  if (!pays_to_ask(layout(), plan_.options(), union_, *expected)) return open_values(round);
  draft().fallback = "refined";
  ADDEND_TRY(bloom_.open_found(counted_union(), union_, local_.as<uint64_t>(), round));
  waiting_ = Waiting::kFound;
  return true;
}

Result<bool> DeviceExactCodec::close_found(Round& round) {
  ADDEND_TRY(bloom_.close_found(counted_union(), bitmap_.as<uint64_t>()));
  ADDEND_TRY(count_union(std::numeric_limits<uint64_t>::max()));
  ADDEND_TRY(pack_ahead());
  ADDEND_TRY(take_count());
  false_positions_ = false;
  return open_values(round);
}

Result<bool> DeviceExactCodec::close_blocks(Round& round) {
  const Result<bool> elements = two_level_.close_blocks(packed_values(), round);
  ADDEND_TRY(elements);
  draft().local_nonzeros = two_level_.nonzeros();
  negative_zeros_ = two_level_.negative_zeros();
  waiting_ = Waiting::kElements;
  return *elements ? true : open_block_values(round);
}

Result<bool> DeviceExactCodec::close_elements(Round& round) {
  ADDEND_TRY(two_level_.close_elements(packed_values()));
  return open_block_values(round);
}

// ---- values

// Does nothing where the union turns out to be larger than `room`, or to travel as it is.
Status DeviceExactCodec::pack_values(uint64_t room, void* values) {
  const index::ExpandCall call{layout().dtype,
                               gradient_,
                               layout().count,
                               bitmap_.as<uint64_t>(),
                               local_.as<uint64_t>(),
                               offsets_.as<uint32_t>(),
                               bases_.as<uint64_t>(),
                               kept_.as<void>(),
                               factor(),
                               totals_.as<index::Totals>(),
                               room,
                               values};
  return device_.check(kernels_.expand(call, device_.stream), "packing values");
}

index::PackedValues DeviceExactCodec::packed_values() {
  return {factor(), most_packed(), &values_};
}

uint64_t DeviceExactCodec::most_packed() const {
  const uint64_t count = layout().count;
  return reproducible() ? count : count - count / 1024 - 1;
}

bool DeviceExactCodec::travels_as_it_is() const {
  return union_ == 0 || (!reproducible() && nearly_dense(union_, layout().count));
}

Result<bool> DeviceExactCodec::open_block_values(Round& round) {
  union_ = selected_ = draft().union_nonzeros = two_level_.size();
  if (!travels_as_it_is()) ADDEND_TRY(two_level_.pack(packed_values()));
  packed_ = values_.capacity() / width();
  if (reproducible()) ADDEND_TRY(two_level_.write_union(bitmap_.as<uint64_t>()));
  return open_values(round);
}

Result<bool> DeviceExactCodec::open_values(Round& round) {
  waiting_ = Waiting::kLast;
  if (travels_as_it_is()) return open_dense_values(round);
  if (packed_ < union_) {
    // A union that grows a little finds room.
    ADDEND_TRY(values_.reserve((union_ + union_ / 4) * width()));
    ADDEND_TRY(pack_values(union_, values_.as<void>()));
  }
  round.last = true;
  if (reproducible()) {
    ADDEND_TRY(reproducible_.count(bitmap_.as<uint64_t>()));
    ADDEND_TRY(reproducible_.pack(values_.as<void>(), round));
    draft().escaped_values = reproducible_.escaped();
    return true;
  }
  round.add({sum_op(layout().dtype), union_, values_.as<void>(), nullptr, nullptr});
  return true;
}

Result<bool> DeviceExactCodec::open_dense_values(Round& round) {
  if (union_ == 0) return false;
  draft().fallback = "dense";
  ADDEND_TRY(open_dense(round));
  return true;
}

Result<std::unique_ptr<Codec>> create_exact_on_device(const CodecSpec& spec, const Layout& layout) {
  Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  options->choice = Choice::kDevice;
  const auto device = cuda::Device::of(layout.execution.stream);
  ADDEND_TRY(device);
  const auto kernels = cuda::part<index::IndexKernels>();
  ADDEND_TRY(kernels);
  auto codec = std::make_unique<DeviceExactCodec>(layout, *options, *device, **kernels);
  ADDEND_TRY(codec->open());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::exact
