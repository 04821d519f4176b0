// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/exact.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bits.h"
#include "codec/convert.h"
#include "codec/dense/dense.h"
#include "codec/index/kernels.h"

namespace addend::exact {
namespace {

template <typename Word>
bool all_below(const void* values, uint64_t count, Word infinity) {
  const auto* words = static_cast<const Word*>(values);
  constexpr Word kMagnitude = std::numeric_limits<Word>::max() / 2;
  Word largest = 0;
  for (uint64_t i = 0; i < count; ++i)
    largest = std::max(largest, static_cast<Word>(words[i] & kMagnitude));
  return largest < infinity;
}

// Whether no value is infinite or NaN: the bits of magnitudes compare like the magnitudes.
bool all_finite(DType dtype, const void* values, uint64_t count) {
  if (dtype == DType::kF32) return all_below<uint32_t>(values, count, 0x7F800000);
  return all_below<uint16_t>(values, count, dtype == DType::kBf16 ? 0x7F80 : 0x7C00);
}

}  // namespace

Result<std::unique_ptr<Codec>> create_exact(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  return std::unique_ptr<Codec>(std::make_unique<ExactCodec>(layout, *options));
}

ExactCodec::ExactCodec(const Layout& layout, const Options& options)
    : SteppedCodec(layout), plan_(this->layout(), options) {}

uint64_t ExactCodec::memory_bytes() const {
  uint64_t total = index_.memory_bytes() + reproducible_.memory_bytes() + sketch_.memory_bytes();
  for (const Buffer* buffer :
       {&spelt_out_, &values_, &ranges_, &cells_, &escape_, &local_escape_, &quanta_, &keys_,
        &fix_up_, &fix_values_, &sizes_, &messages_plane_}) {
    total += buffer->capacity();
  }
  return total;
}

Status ExactCodec::begin_sparse(const index::Sparse& gradient) {
  given_ = gradient;
  return begin(gradient.values);
}

Status ExactCodec::do_begin(const void* gradient) {
  const index::Sparse given = std::exchange(given_, {});
  gradient_ = given.bitmap == nullptr ? gradient : nullptr;
  waiting_ = Waiting::kNothing;
  dense_plane_ = nullptr;
  peeled_ = false_positions_ = false;
  if (given.bitmap == nullptr) {
    index_.start(width(), gradient, layout().count);
  } else {
    index_.start(width(), given, layout().count);
  }
  union_ = selected_ = fix_up_count_ = 0;
  draft().mode = mode_name(mode());
  const bool sized = plan_.options().mode == Mode::kSketch || plan_.options().mode == Mode::kBloom;
  if (sized && plan_.seen().nonzeros == Observation::kUnknown) draft().fallback = "first-step";
  return {};
}

// For what looks at elements by their positions.
Status ExactCodec::spell_out() {
  if (gradient_ != nullptr) return {};
  ADDEND_TRY(spelt_out_.reserve(layout().count * width()));
  index_.write_gradient(spelt_out_.as<void>());
  gradient_ = spelt_out_.as<void>();
  return {};
}

Status ExactCodec::scan_gradient() {
  ADDEND_TRY(index_.scan());
  draft().local_nonzeros = index_.nonzeros();
  const bool looks = mode() == Mode::kSketch || mode() == Mode::kGather || reproducible();
  if (!looks) return {};
  // Sketches, messages and reproducible values look at the non-zeros themselves, however many there
  // are.
  ADDEND_TRY(values_.reserve(index_.nonzeros() * width() + Buffer::kSlack));
  index_.gather_local(values_.as<void>());
  return {};
}

NonZeros ExactCodec::nonzeros() const {
  return {index_.local(), values_.as<void>(), layout().count};
}

Result<bool> ExactCodec::do_round(Round& round) {
  switch (waiting_) {
    case Waiting::kNothing: {
      if (layout().count == 0) return false;
      if (mode() != Mode::kDense && (!by_blocks() || plan_.counts_own()))
        ADDEND_TRY(scan_gradient());
      if (mode() == Mode::kDense) {
        ADDEND_TRY(open_dense(round));
      } else if (mode() == Mode::kSketch && reproducible()) {
        ADDEND_TRY(open_ranges(round));
      } else if (mode() == Mode::kSketch) {
        ADDEND_TRY(open_sketch(round));
      } else if (mode() == Mode::kTwoLevel) {
        ADDEND_TRY(open_blocks(round));
      } else if (mode() == Mode::kBloom) {
        ADDEND_TRY(open_filter(round));
      } else if (mode() == Mode::kGather) {
        ADDEND_TRY(open_sizes(round));
      } else {
        ADDEND_TRY(open_index(round));
      }
      add_own_plane(round);
      return true;
    }
    case Waiting::kRanges:
      ADDEND_TRY(open_sketch(round));
      return true;
    case Waiting::kBlocks:
      return close_blocks(round);
    case Waiting::kElements:
      return close_elements(round);
    case Waiting::kIndex:
      return close_index(round);
    case Waiting::kFilter:
      return close_filter(round);
    case Waiting::kFound:
      return close_found(round);
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

// -------------------------------------------------------------------------------------------------------------

Status ExactCodec::open_dense(Round& round) {
  ADDEND_TRY(spell_out());
  const Result<void*> plane = add_dense_plane(layout(), {gradient_, lent()}, values_, round);
  ADDEND_TRY(plane);
  dense_plane_ = *plane;
  waiting_ = Waiting::kLast;
  return {};
}

Status ExactCodec::measure() {
  const uint64_t lanes = ceil_div(layout().count, kRangeBlock) * kRangeLanes;
  ADDEND_TRY(ranges_.reserve(lanes * 4));
  measure_ranges(layout().dtype, nonzeros(), ranges_.as<uint32_t>());
  return {};
}

Status ExactCodec::open_ranges(Round& round) {
  ADDEND_TRY(measure());
  const uint64_t lanes = ceil_div(layout().count, kRangeBlock) * kRangeLanes;
  round.add({Op::kMaxU32, lanes, ranges_.as<void>(), nullptr, nullptr});
  waiting_ = Waiting::kRanges;
  return {};
}

Status ExactCodec::open_index(Round& round) {
  ADDEND_TRY(index_.open_bitmap(round));
  if (reproducible()) ADDEND_TRY(open_ranges(round));
  waiting_ = Waiting::kIndex;
  return {};
}

Status ExactCodec::open_filter(Round& round) {
  ADDEND_TRY(index_.open_filter(plan_.filter(), round));
  if (reproducible()) ADDEND_TRY(open_ranges(round));
  waiting_ = Waiting::kFilter;
  return {};
}

Status ExactCodec::open_blocks(Round& round) {
  // The survey at the end of a step wants the union as a bitmap, and must not fail then.
  if (plan_.options().mode == Mode::kAuto) ADDEND_TRY(index_.reserve_bitmap());
  ADDEND_TRY(index_.open_blocks(plan_.seen().block, round));
  draft().local_nonzeros = index_.nonzeros();
  if (reproducible()) ADDEND_TRY(open_ranges(round));
  waiting_ = Waiting::kBlocks;
  return {};
}

// ----------------------------------------------------------------------------------------------------------------

Result<bool> ExactCodec::close_blocks(Round& round) {
  const Result<bool> elements = index_.close_blocks(round);
  ADDEND_TRY(elements);
  waiting_ = Waiting::kElements;
  if (*elements) return true;
  ADDEND_TRY(accept_union());
  return open_values(round);
}

Result<bool> ExactCodec::close_elements(Round& round) {
  ADDEND_TRY(index_.close_elements());
  ADDEND_TRY(accept_union());
  return open_values(round);
}

Status ExactCodec::accept_union() {
  union_ = selected_ = draft().union_nonzeros = index_.size();
  return index_.holds_local() ? Status() : index::lost_index_bits();
}

Result<bool> ExactCodec::close_index(Round& round) {
  index_.close_bitmap();
  ADDEND_TRY(accept_union());
  return open_values(round);
}

// A filter that the union outgrew holds many false positions: then all are asked for first.
Result<bool> ExactCodec::close_filter(Round& round) {
  const double expected = index_.close_filter();
  ADDEND_TRY(accept_union());
  false_positions_ = true;
  if (!pays_to_ask(layout(), plan_.options(), union_, expected)) return open_values(round);
  draft().fallback = "refined";
  ADDEND_TRY(index_.open_found(round));
  waiting_ = Waiting::kFound;
  return true;
}

Result<bool> ExactCodec::close_found(Round& round) {
  index_.close_found();
  ADDEND_TRY(accept_union());
  false_positions_ = false;
  return open_values(round);
}

Result<bool> ExactCodec::open_values(Round& round) {
  waiting_ = Waiting::kLast;
  if (union_ == 0) return false;
  if (!reproducible() && nearly_dense(union_, layout().count)) {
    draft().fallback = "dense";
    ADDEND_TRY(open_dense(round));
    return true;
  }
  round.last = true;
  ADDEND_TRY(values_.reserve(union_ * width() + Buffer::kSlack));
  if (reproducible()) {
    ADDEND_TRY(spell_out());
    ADDEND_TRY(reproducible_.set_ranges(ranges_.as<uint32_t>(), layout().count,
                                        RangeRules::of(layout().world, plan_.options().tolerance)));
    ADDEND_TRY(reproducible_.pack(layout().dtype, gradient_, bitmap()));
    for (const Plane& plane : {reproducible_.narrow_plane(), reproducible_.wide_plane()}) {
      if (plane.lanes > 0) round.add(plane);
    }
    draft().escaped_values = reproducible_.escaped();
    return true;
  }
  index_.gather(values_.as<void>());
  multiply(layout().dtype, values_.as<void>(), union_, scale(), values_.as<void>());
  round.add({sum_op(layout().dtype), union_, values_.as<void>(), nullptr, nullptr});
  return true;
}

// -----------------------------------------------------------------------------------------------------------------

Status ExactCodec::do_finish(void* gradient) {
  if (peeled_) {
    ADDEND_TRY(assemble_sketch());
  } else if (reproducible() && union_ > 0) {
    reproducible_.unpack(layout().dtype, bitmap(), scale(), values_.as<void>());
  }
  if (dense_plane_ != nullptr) {
    take_dense_plane(layout(), dense_plane_, gradient);
  } else if (mode() == Mode::kGather && layout().count > 0) {
    add_messages(gradient);
  } else if (layout().count > 0) {
    index_.scatter(values_.as<void>(), gradient);
    if (false_positions_) count_sums();
  }
  observe(gradient);
  return {};
}

void ExactCodec::do_skip_step() { plan_.count_dense_step(); }

// What a filter holds beyond the union has sums of zero. So has what cancelled, which is not told
// apart.
void ExactCodec::count_sums() {
  union_ = 0;
  for (uint64_t i = 0; i < selected_; ++i)
    union_ += load_float(layout().dtype, values_.as<void>(), i) != 0 ? 1 : 0;
  draft().union_nonzeros = union_;
}

void ExactCodec::observe(const void* sum) {
  if (mode() == Mode::kDense) return do_skip_step();
  const bool dense = dense_plane_ != nullptr || mode() == Mode::kGather;
  if (plan_.count_step(union_) && !all_finite(layout().dtype, dense ? sum : values_.as<void>(),
                                              dense ? layout().count : selected_)) {
    return plan_.decide_without_learning();
  }
  plan_.learn(union_, top_lane_);
  if (mode() == Mode::kGather) plan_.learn_own(most_own_);
  if (plan_.counts_own()) plan_.learn_own(own_lane_);
  if (plan_.wants_survey()) survey_blocks();
  plan_.decide();
}

void ExactCodec::survey_blocks() {
  if (union_ == 0) return plan_.survey(nullptr);
  if (index_.by_blocks()) index_.write_bitmap();
  if (false_positions_ && dense_plane_ == nullptr) index_.drop_zeros(values_.as<void>());
  plan_.survey(bitmap());
}

}  // namespace addend::exact
