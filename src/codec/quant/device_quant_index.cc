// SPDX-License-Identifier: Apache-2.0
// A DeviceQuantCodec's step with an index, as quant_index.cc has it. Blocks follow the union, so
// the host cuts them anew once it knows how many positions each segment has.
#include <array>

#include "codec/quant/device_quant.h"

namespace addend::quant {

Status DeviceQuantCodec::set_up_index() {
  residual_.describe(options_.feedback, layout().count, 0);
  if (layout().count == 0) return {};
  const auto kernels = cuda::part<index::IndexKernels>();
  ADDEND_TRY(kernels);
  union_.emplace(device_, **kernels, layout());
  ADDEND_TRY(union_->open());
  return reserve_residuals(layout().count);
}

Status DeviceQuantCodec::open_index(Round& round) {
  ADDEND_TRY(form_.in_blocks() ? union_->open_blocks(gradient_, form_.block(), round)
                               : union_->open_bitmap(gradient_, round));
  waiting_ = Waiting::kIndex;
  return {};
}

Result<bool> DeviceQuantCodec::close_index(Round& round) {
  const Result<bool> elements = union_->close(excluded_, round);
  ADDEND_TRY(elements);
  draft().local_nonzeros = union_->nonzeros();
  if (*elements) return true;
  waiting_ = Waiting::kLast;
  ADDEND_TRY(take_union());
  if (union_->size() == 0) return false;
  ADDEND_TRY(open_norms(round));
  return true;
}

// The union's elements become the gradient that blocks are cut from, segment by segment.
Status DeviceQuantCodec::take_union() {
  const uint64_t size = draft().union_nonzeros = union_->size();
  Layout live = layout();
  live.count = size;
  for (std::size_t s = 0; s < live.segments.size(); ++s)
    live.segments[s].count = union_->segment_sizes()[s];
  ADDEND_TRY(cut_blocks(live));
  if (size == 0) return {};
  if (size * 4 > values_.capacity()) {
    const uint64_t room = size + size / 4;  // a union that grows a little finds some
    if (layout().dtype != DType::kF32) ADDEND_TRY(elements_.reserve(room * 2));
    if (residual_.any()) ADDEND_TRY(owed_values_.reserve(room * 4));
    ADDEND_TRY(values_.reserve(room * 4));
  }
  args_.gradient = values_.as<void>();
  return union_->gather(owed().values.as<float>(), owed_values_.as<float>(), values_.as<float>());
}

Status DeviceQuantCodec::finish_index(void* gradient) {
  if (layout().count == 0) return {};
  const bool surveys = form_.count(union_->size());
  if (surveys && union_->size() > 0) ADDEND_TRY(union_->ask(IndexForm::sizes()));
  if (union_->size() > 0 && residual_.any() && !excluded_) {
    ADDEND_TRY(
        check(kernels_->keep(args_, owed_values_.as<float>(), stream()), "finding what is owed"));
    ADDEND_TRY(union_->put(owed_values_.as<float>(), owed().values.as<float>()));
  }
  void* sums = (layout().dtype == DType::kF32 ? values_ : elements_).as<void>();
  if (union_->size() > 0) {
    DeviceStep decoding = args_;
    decoding.dtype = static_cast<uint8_t>(layout().dtype);
    ADDEND_TRY(decode(decoding, sums));
  }
  ADDEND_TRY(union_->scatter(sums, gradient));
  if (surveys && union_->size() == 0)
    form_.survey(layout(), std::array<exact::BlockCounts, exact::kBlockSizes.size()>{});
  unsettled_ = surveys && union_->size() > 0;
  if (!unsettled_) form_.choose(layout());
  return {};
}

// The form of the next step, once the survey that was asked for when the last one ended has come.
void DeviceQuantCodec::settle() const {
  if (!unsettled_) return;
  unsettled_ = false;
  const Result<std::span<const uint64_t>> answer = union_->answer();
  if (!answer) {
    settling_ = answer.error();
    return;
  }
  std::array<exact::BlockCounts, exact::kBlockSizes.size()> counts;
  for (std::size_t s = 0; s < counts.size(); ++s)
    counts[s] = {(*answer)[2 * s], (*answer)[2 * s + 1]};
  form_.survey(layout(), counts);
  form_.choose(layout());
}

void DeviceQuantCodec::add_plan(Fingerprint& print) const {
  settle();
  if (indexed()) form_.add_to(print);
}

}  // namespace addend::quant
