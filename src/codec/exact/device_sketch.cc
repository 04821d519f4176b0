// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/device_sketch.h"

#include <limits>
#include <string>

#include "base/bits.h"

namespace addend::exact {

DeviceSketch::DeviceSketch(const cuda::Device& device, const index::IndexKernels& kernels,
                           const Layout& layout)
    : device_(device),
      layout_(layout),
      keys_(device, kernels),
      fix_up_(device, kernels),
      stuck_(device, kernels),
      topped_(device),
      peeled_(device),
      cells_(device.runtime),
      escape_(device.runtime),
      top_(device.runtime),
      stuck_values_(device.runtime),
      fix_values_(device.runtime),
      local_escape_(device.runtime),
      given_(device.runtime),
      starts_(device.runtime),
      positions_(device.runtime),
      numbers_(device.runtime),
      slots_(device.runtime),
      workspace_(device.runtime),
      found_(device.runtime) {}

Status DeviceSketch::open() {
  const auto found = cuda::part<SketchKernels>();
  ADDEND_TRY(found);
  kernels_ = *found;
  ADDEND_TRY(keys_.open());
  ADDEND_TRY(fix_up_.open());
  ADDEND_TRY(stuck_.open());
  ADDEND_TRY(topped_.open());
  ADDEND_TRY(peeled_.open());
  ADDEND_TRY(top_.reserve(sizeof(uint32_t)));
  return found_.reserve(2 * sizeof(uint64_t));
}

Status DeviceSketch::reserve_bins() {
  const uint64_t chunks = shape_.chunks, slots = shape_.cells();
  ADDEND_TRY(given_.reserve((chunks + 1) * sizeof(uint64_t)));
  ADDEND_TRY(starts_.reserve((chunks + 1) * sizeof(uint64_t)));
  ADDEND_TRY(positions_.reserve(slots * sizeof(uint64_t)));
  ADDEND_TRY(numbers_.reserve(slots * sizeof(int64_t)));
  bins_ = {given_.as<uint64_t>(), starts_.as<uint64_t>(), positions_.as<uint64_t>(),
           numbers_.as<int64_t>(), false};
  return {};
}

Status DeviceSketch::insert(const SketchShape& shape, const Quanta& quanta, const void* gradient,
                            const uint64_t* local, const void* kept, Round& round) {
  shape_ = shape;
  quanta_ = quanta;
  gradient_ = gradient;
  stuck_count_ = 0;
  left_cells_.reset();
  const uint64_t escape_words = words_for(words());
  ADDEND_TRY(cells_.reserve(shape.lanes_total() * 8));
  ADDEND_TRY(device_.check(kernels_->room(shape, &room_), "asking for room"));
  if (room_.sorts) ADDEND_TRY(reserve_bins());
  InsertCall call{
      quanta,  gradient, local,  kept, words(), shape, room_.sorts, bins_, cells_.as<uint64_t>(),
      nullptr, nullptr,  nullptr};
  if (!by_formats()) {
    ADDEND_TRY(escape_.reserve(escape_words * 8));
    ADDEND_TRY(local_escape_.reserve(escape_words * 8));
    call.escape = escape_.as<uint64_t>();
    call.local_escape = local_escape_.as<uint64_t>();
    call.top = top_.as<uint32_t>();
  }
  ADDEND_TRY(device_.check(kernels_->insert(call, device_.stream), "adding keys to cells"));
  round.add({Op::kSumI64, shape.lanes_total(), cells_.as<void>(), nullptr, nullptr});
  if (by_formats()) return {};
  round.add({Op::kOrU64, escape_words, escape_.as<void>(), nullptr, nullptr});
  round.add({Op::kMaxU32, 1, top_.as<void>(), nullptr, nullptr});
  return {};
}

Status DeviceSketch::split(const uint64_t* bitmap) {
  ADDEND_TRY(fix_up_.reserve(width(), layout_.count));
  if (by_formats()) ADDEND_TRY(keys_.reserve(width(), layout_.count));
  const SplitCall call{quanta_,
                       bitmap,
                       words(),
                       escape_.as<uint64_t>(),
                       fix_up_.bitmap(),
                       by_formats() ? keys_.bitmap() : nullptr,
                       by_formats() ? nullptr : top_.as<uint32_t>(),
                       topped_.address(),
                       topped_.expect()};
  ADDEND_TRY(device_.check(kernels_->split(call, device_.stream), "looking for what escapes"));
  if (by_formats()) ADDEND_TRY(keys_.count());
  return fix_up_.count();
}

Result<uint32_t> DeviceSketch::top() const {
  const Result<const cuda::Mail*> mail = topped_.wait();
  ADDEND_TRY(mail);
  return static_cast<uint32_t>((*mail)->numbers[0]);
}

Status DeviceSketch::peel(const index::CountedUnion& all, uint64_t keys) {
  // Slots, of which chunks have as many as cells.
  if (shape_.cells() > std::numeric_limits<uint32_t>::max())
    return make_error(Errc::kUnsupported, "a sketch of " + std::to_string(shape_.cells()) +
                                              " cells: a device peels fewer than 2^32");
  ADDEND_TRY(reserve_bins());
  ADDEND_TRY(slots_.reserve(keys * sizeof(uint32_t)));
  ADDEND_TRY(stuck_.reserve(width(), layout_.count));
  ADDEND_TRY(workspace_.reserve(room_.ctas * room_.workspace));
  bins_.counted = room_.counts;
  do {
    const PeelCall call{shape_,
                        room_,
                        by_formats() ? keys_.counted() : all,
                        bins_,
                        slots_.as<uint32_t>(),
                        cells_.as<uint64_t>(),
                        stuck_.bitmap(),
                        workspace_.as<void>(),
                        found_.as<uint64_t>(),
                        peeled_.address(),
                        peeled_.expect()};
    ADDEND_TRY(device_.check(kernels_->peel(call, device_.stream), "peeling"));
    const Result<const cuda::Mail*> mail = peeled_.wait();
    ADDEND_TRY(mail);
    stuck_count_ = (*mail)->numbers[0];
    left_cells_ = (*mail)->numbers[1];
    if (stuck_count_ != kNoRoom) return {};
    bins_.counted = true;
  } while (true);
}

Status DeviceSketch::open_fix_up(float factor, uint64_t fix_up, DeviceReproducible* values,
                                 Round& round) {
  PickCall call{{}, quanta_, gradient_, local_escape_.as<uint64_t>(), factor, nullptr};
  if (stuck_count_ > 0) {
    ADDEND_TRY(stuck_values_.reserve(stuck_count_ * 8));
    ADDEND_TRY(stuck_.count());
    call.of = stuck_.counted();
    call.to = stuck_values_.as<void>();
    ADDEND_TRY(device_.check(kernels_->pick_quanta(call, device_.stream), "packing integers"));
    round.add({Op::kSumI64, stuck_count_, stuck_values_.as<void>(), nullptr, nullptr});
  }
  if (fix_up == 0) return {};
  ADDEND_TRY(fix_values_.reserve(fix_up * width()));
  call.of = fix_up_.counted();
  call.to = fix_values_.as<void>();
  ADDEND_TRY(device_.check(kernels_->pick_elements(call, device_.stream), "packing values"));
  if (values == nullptr) {
    round.add({sum_op(layout_.dtype), fix_up, fix_values_.as<void>(), nullptr, nullptr});
    return {};
  }
  ADDEND_TRY(values->count(fix_up_.bitmap()));
  return values->pack(fix_values_.as<void>(), round);
}

Status DeviceSketch::settle() {
  if (left_cells_ && stuck_count_ == 0) return Sketch::check_zeros(shape_, *left_cells_);
  SettleCall call{shape_,
                  {},
                  stuck_values_.as<int64_t>(),
                  cells_.as<uint64_t>(),
                  found_.as<uint64_t>(),
                  peeled_.address(),
                  peeled_.expect()};
  if (stuck_count_ > 0) call.stuck = stuck_.counted();
  ADDEND_TRY(device_.check(kernels_->settle(call, device_.stream), "looking at cells"));
  const Result<const cuda::Mail*> mail = peeled_.wait();
  ADDEND_TRY(mail);
  return Sketch::check_zeros(shape_, (*mail)->numbers[0]);
}

Status DeviceSketch::assemble(const index::CountedUnion& all, float scale, uint64_t fix_up,
                              DeviceReproducible* reproducible, void* values) {
  if (reproducible != nullptr && fix_up > 0)
    ADDEND_TRY(reproducible->unpack(scale, fix_values_.as<void>()));
  AssembleCall call{quanta_,
                    scale,
                    all,
                    by_formats() ? keys_.counted() : all,
                    {},
                    {},
                    slots_.as<uint32_t>(),
                    numbers_.as<int64_t>(),
                    stuck_values_.as<int64_t>(),
                    fix_values_.as<void>(),
                    values};
  if (stuck_count_ > 0) call.stuck = stuck_.counted();
  if (fix_up > 0) call.fix_up = fix_up_.counted();
  return device_.check(kernels_->assemble(call, device_.stream), "decoding integers");
}

uint64_t DeviceSketch::memory_bytes() const {
  uint64_t total = keys_.memory_bytes() + fix_up_.memory_bytes() + stuck_.memory_bytes();
  for (const cuda::DeviceBuffer* buffer :
       {&cells_, &escape_, &top_, &stuck_values_, &fix_values_, &local_escape_, &given_, &starts_,
        &positions_, &numbers_, &slots_, &workspace_, &found_})
    total += buffer->capacity();
  return total;
}

}  // namespace addend::exact
