// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/exact.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bits.h"
#include "codec/convert.h"
#include "codec/dense/dense.h"
#include "codec/fingerprint.h"
#include "codec/index/kernels.h"

namespace addend::exact {
namespace {

// From this union density on, gathering values costs more than the few zeros (0.1 %) it would save.
bool nearly_dense(uint64_t nonzeros, uint64_t count) { return nonzeros >= count - count / 1024; }

// The window of the first sketch: values from 2^-30 to 2^5 keep all their bits for worlds up to
// 2^4; f16 fits whole.
constexpr int kFirstTop = 5;
constexpr int kF16Top = 15;
// Room above the largest value of the last step.
constexpr int kTopMargin = 4;

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
    : SteppedCodec(layout), options_(options) {
  seen_.steps = layout.first_step;
  if (options.block != 0) seen_.block = options.block;
  if (options.density >= 0) {
    seen_.nonzeros = seen_.capacity =
        static_cast<uint64_t>(std::ceil(options.density * static_cast<double>(layout.count)));
  }
  make_plan();
}

void ExactCodec::make_plan() {
  mode_ = choose(layout(), options_, seen_);
  // Another seed every step: an unlucky set of keys is not unlucky for ever.
  const uint64_t seed = addend_random(layout().seed ^ layout().bucket, seen_.steps);
  if (mode_ == Mode::kBloom) filter_ = plan_filter(layout(), options_, seen_, seed);
  if (mode_ != Mode::kSketch) return;
  shape_ = SketchShape::plan(seen_.capacity, options_.lanes, 1, seed);
  const int unseen = layout().dtype == DType::kF16 ? kF16Top : kFirstTop;
  const int top = seen_.top == Observation::kNoTop ? unseen : seen_.top + kTopMargin;
  window_ = Window::at(std::clamp(top, kLowestBit, kHighestBit), layout().world);
}

uint64_t ExactCodec::fingerprint() const {
  Fingerprint print;
  print.add("exact").add(layout()).add(static_cast<uint64_t>(options_.mode));
  print.add(static_cast<uint64_t>(options_.values)).add(options_.tolerance);
  print.add(options_.block == 0 ? kDefaultBlock : options_.block);
  print.add(options_.density).add(uint64_t{options_.lanes}).add(seen_.steps);
  print.add(static_cast<uint64_t>(mode_));
  if (mode_ == Mode::kTwoLevel && chooses_block(options_)) print.add(seen_.block);
  if (mode_ == Mode::kBloom)
    print.add(filter_.seed).add(filter_.words).add(uint64_t{filter_.hashes});
  if (mode_ == Mode::kSketch) {
    print.add(shape_.seed)
        .add(shape_.cells())
        .add(uint64_t{shape_.chunks})
        .add(uint64_t{shape_.hashes});
    print.add(static_cast<uint64_t>(int64_t{window_.top} + kTopBias));
  }
  return print.value();
}

uint64_t ExactCodec::memory_bytes() const {
  uint64_t total = index_.memory_bytes() + reproducible_.memory_bytes() + sketch_.memory_bytes();
  for (const Buffer* buffer : {&values_, &ranges_, &cells_, &escape_, &local_escape_, &quanta_,
                               &keys_, &fix_up_, &fix_values_}) {
    total += buffer->capacity();
  }
  return total;
}

Status ExactCodec::do_begin(const void* gradient) {
  gradient_ = gradient;
  waiting_ = Waiting::kNothing;
  dense_plane_ = nullptr;
  peeled_ = false_positions_ = false;
  index_.start(width(), gradient, layout().count);
  union_ = selected_ = fix_up_count_ = 0;
  draft().mode = mode_name(mode_);
  const bool sized = options_.mode == Mode::kSketch || options_.mode == Mode::kBloom;
  if (sized && seen_.nonzeros == Observation::kUnknown) draft().fallback = "first-step";
  return {};
}

Status ExactCodec::scan_gradient() {
  ADDEND_TRY(index_.scan());
  draft().local_nonzeros = index_.nonzeros();
  if (index_.kept() != nullptr || (mode_ != Mode::kSketch && !reproducible())) return {};
  // Sketches and reproducible values look at the non-zeros themselves, however many there are.
  ADDEND_TRY(values_.reserve(index_.nonzeros() * width() + Buffer::kSlack));
  index::pack(width(), gradient_, layout().count, index_.local(), values_.as<void>());
  return {};
}

NonZeros ExactCodec::nonzeros() const {
  const void* kept = index_.kept();
  return {index_.local(), kept != nullptr ? kept : values_.as<void>(), layout().count};
}

Result<bool> ExactCodec::do_round(Round& round) {
  switch (waiting_) {
    case Waiting::kNothing: {
      if (layout().count == 0) return false;
      if (mode_ != Mode::kDense && !by_blocks()) ADDEND_TRY(scan_gradient());
      if (mode_ == Mode::kDense) {
        ADDEND_TRY(open_dense(round));
      } else if (mode_ == Mode::kSketch && reproducible()) {
        ADDEND_TRY(open_ranges(round));
      } else if (mode_ == Mode::kSketch) {
        ADDEND_TRY(open_sketch(round));
      } else if (mode_ == Mode::kTwoLevel) {
        ADDEND_TRY(open_blocks(round));
      } else if (mode_ == Mode::kBloom) {
        ADDEND_TRY(open_filter(round));
      } else {
        ADDEND_TRY(open_index(round));
      }
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
    case Waiting::kLast:
      return false;
  }
  return false;
}

// -------------------------------------------------------------------------------------------------------------

Status ExactCodec::open_dense(Round& round) {
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
  ADDEND_TRY(index_.open_filter(filter_, round));
  if (reproducible()) ADDEND_TRY(open_ranges(round));
  waiting_ = Waiting::kFilter;
  return {};
}

Status ExactCodec::open_blocks(Round& round) {
  // The survey at the end of a step wants the union as a bitmap, and must not fail then.
  if (options_.mode == Mode::kAuto) ADDEND_TRY(index_.reserve_bitmap());
  ADDEND_TRY(index_.open_blocks(seen_.block, round));
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
  if (!pays_to_ask(layout(), options_, union_, expected)) return open_values(round);
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
    ADDEND_TRY(reproducible_.set_ranges(ranges_.as<uint32_t>(), layout().count, layout().world,
                                        options_.tolerance));
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
  } else if (layout().count > 0) {
    index_.scatter(values_.as<void>(), gradient);
    if (false_positions_) count_sums();
  }
  observe(gradient);
  return {};
}

void ExactCodec::do_skip_step() {
  ++seen_.steps;
  ++seen_.dense_steps;
  make_plan();
}

// What a filter holds beyond the union has sums of zero. So has what cancelled, which is not told
// apart.
void ExactCodec::count_sums() {
  union_ = 0;
  for (uint64_t i = 0; i < selected_; ++i)
    union_ += load_float(layout().dtype, values_.as<void>(), i) != 0 ? 1 : 0;
  draft().union_nonzeros = union_;
}

void ExactCodec::observe(const void* sum) {
  if (mode_ == Mode::kDense) return do_skip_step();
  ++seen_.steps;
  // After a run of dense steps what was seen before it is no more than a guess.
  const bool looked = seen_.dense_steps > 0;
  if (looked) unions_.clear();
  // Training skips a step that is not finite, and so do we, where it would change the plan: such
  // gradients are often dense. A look that it spoils is repeated.
  const bool surprising = !unions_.any() || union_ / 2 > seen_.nonzeros;
  const bool dense = dense_plane_ != nullptr;
  if (surprising && !all_finite(layout().dtype, dense ? sum : values_.as<void>(),
                                dense ? layout().count : selected_)) {
    return make_plan();
  }
  learn();
  make_plan();
  // Looks that find nothing new become rarer.
  if (mode_ != Mode::kDense) {
    seen_.look_after = 1;
  } else if (looked) {
    seen_.look_after = std::min(2 * seen_.look_after, options_.probe);
  }
}

void ExactCodec::learn() {
  unions_.add(union_);
  seen_.dense_steps = 0;
  seen_.mode = mode_;
  seen_.nonzeros = unions_.expected();
  seen_.capacity = std::min(unions_.capacity(), layout().count);
  if (mode_ == Mode::kSketch && !reproducible()) {
    // A lane beyond any float's top comes from a broken adder; it must not overflow here.
    const auto top = static_cast<int>(std::min<uint32_t>(top_lane_, kTopBias + kHighestBit));
    seen_.top = top == 0 ? Observation::kNoTop : top - kTopBias;
  }
  if (surveys_blocks(options_, seen_)) survey_blocks();
}

// What the two-level form of this union would cost, for the next choice, at the block size at
// which it costs least.
void ExactCodec::survey_blocks() {
  seen_.live_blocks = seen_.element_bits = 0;
  if (union_ == 0) return;
  if (index_.by_blocks()) index_.write_bitmap();
  if (false_positions_ && dense_plane_ == nullptr) index_.drop_zeros(values_.as<void>());
  exact::survey_blocks(layout(), options_, bitmap(), seen_);
}

}  // namespace addend::exact
