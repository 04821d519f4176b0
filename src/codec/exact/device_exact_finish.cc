// SPDX-License-Identifier: Apache-2.0
// The end of DeviceExactCodec's steps: sums back to the gradient, and what the next plan learns.
#include <array>
#include <span>

#include "codec/dense/device_dense.h"
#include "codec/exact/device_exact_codec.h"

namespace addend::exact {

Status DeviceExactCodec::do_finish(void* gradient) {
  const cuda::OnDevice here(device_);
  if (peeled_) {
    ADDEND_TRY(assemble_sketch());
  } else if (reproducible() && union_ > 0) {
    ADDEND_TRY(reproducible_.unpack(scale(), values_.as<void>()));
  }
  // What may fail comes before the gradient is written.
  const bool learns = mode() != Mode::kDense;
  if (false_positions_ && dense_plane_ == nullptr) ADDEND_TRY(count_sums());
  looks_ = surveys_ = false;
  // Messages are only sent where the user says so: no later plan hangs on their sum.
  if (learns && mode() != Mode::kGather) {
    const bool dense = dense_plane_ != nullptr;
    ADDEND_TRY(dense ? ask(dense_plane_, layout().count) : ask(values_.as<void>(), selected_));
  }
  if (mode() == Mode::kGather && layout().count > 0) {
    ADDEND_TRY(
        own_.add_to(layout().dtype, layout().count, messages_.as<uint64_t>(), bounds_, gradient));
  } else if (dense_plane_ != nullptr) {
    ADDEND_TRY(take_dense_plane(layout(), device_, dense_plane_, gradient));
  } else if (layout().count > 0) {
    ADDEND_TRY(scatter(gradient));
  }
  if (!learns) {
    plan_.count_dense_step();
    return {};
  }
  plan_.count_step(union_);
  unsettled_ = looks_ || surveys_;
  if (!unsettled_) learn();
  return {};
}

// What a filter holds beyond the union has sums of zero. So has what cancelled, which is not told
// apart.
Status DeviceExactCodec::count_sums() {
  if (selected_ == 0) return {};
  ADDEND_TRY(bloom_.count_nonzeros(width(), values_.as<void>(), selected_));
  const Result<uint64_t> nonzeros = bloom_.nonzeros();
  ADDEND_TRY(nonzeros);
  union_ = draft().union_nonzeros = *nonzeros;
  return {};
}

// As UnionIndex::scatter.
Status DeviceExactCodec::scatter(void* gradient) {
  const bool zeros_stand = gradient == gradient_ && !negative_zeros_;
  if (selected_ == 0) {
    if (zeros_stand) return {};
    return device_.check(
        device_.runtime->fill(gradient, 0, layout().count * width(), device_.stream),
        "clearing a gradient");
  }
  if (mode() == Mode::kTwoLevel)
    return two_level_.unpack(values_.as<void>(), zeros_stand, gradient);
  const index::UnpackCall call{width(),
                               values_.as<void>(),
                               bitmap_.as<uint64_t>(),
                               offsets_.as<uint32_t>(),
                               bases_.as<uint64_t>(),
                               layout().count,
                               !zeros_stand,
                               gradient};
  return device_.check(kernels_.unpack(call, device_.stream), "unpacking values");
}

// Letters about the sums, for the plan of the next step.
Status DeviceExactCodec::ask(const void* sums, uint64_t count) {
  looks_ = plan_.wants_look(union_);
  surveys_ = plan_.will_want_survey() && union_ > 0;
  if (looks_)
    ADDEND_TRY(device_.check(
        kernels_.look_for_nonfinite(layout().dtype, sums, count,
                                    reinterpret_cast<uint64_t*>(totals_.as<index::Totals>() + 1),
                                    looked_.address(), looked_.expect(), device_.stream),
        "looking at a sum"));
  return surveys_ ? survey_blocks() : Status();
}

Status DeviceExactCodec::survey_blocks() {
  if (mode() == Mode::kTwoLevel) ADDEND_TRY(two_level_.write_union(bitmap_.as<uint64_t>()));
  return two_level_.ask(bitmap_.as<uint64_t>(), layout().count, surveyed_sizes(plan_.options()));
}

void DeviceExactCodec::learn() const {
  plan_.learn(union_, top_);
  if (plan_.wants_survey()) plan_.survey(nullptr);  // of an empty union
  plan_.decide();
}

// The plan of the next step, once what the last one showed is known. It is a few bytes that were
// asked for when the last step ended.
const Plan& DeviceExactCodec::settled() const {
  if (!unsettled_) return plan_;
  unsettled_ = false;
  settling_ = settle();
  return plan_;
}

// Without all letters nothing is learned: a plan is never decided by half.
Status DeviceExactCodec::settle() const {
  const Result<std::span<const uint64_t>> answer =
      surveys_ ? two_level_.answer() : std::span<const uint64_t>();
  bool learns = static_cast<bool>(answer);
  Status status = learns ? Status() : answer.error();
  if (learns && looks_) {
    const Result<const cuda::Mail*> mail = looked_.wait();
    if (!mail) status = mail.error();
    learns = mail && (*mail)->numbers[0] == 0;
  }
  if (!learns) {
    plan_.decide_without_learning();
  } else if (!surveys_) {
    learn();
  } else {
    learn_surveyed(*answer);
  }
  return status;
}

void DeviceExactCodec::learn_surveyed(std::span<const uint64_t> answer) const {
  plan_.learn(union_, top_);
  std::array<BlockCounts, kBlockSizes.size()> counts;
  for (std::size_t s = 0; s < counts.size(); ++s)
    counts[s] = {answer[2 * s], answer[2 * s + 1]};
  plan_.survey(counts);
  plan_.decide();
}

}  // namespace addend::exact
