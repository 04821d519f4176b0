// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/exact.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bits.h"
#include "codec/exact/kernels.h"
#include "codec/fingerprint.h"

namespace addend::exact {
namespace {

// Non-zeros are kept during the scan while they are at most a quarter of the gradient; beyond, they
// are read from it again.
constexpr uint64_t kKeptShare = 4;

// From this union density on, gathering values costs more than the few zeros (0.1 %) it would save.
bool nearly_dense(uint64_t nonzeros, uint64_t count) { return nonzeros >= count - count / 1024; }

// The window of the first sketch: values from 2^-30 to 2^5 keep all their bits for worlds up to
// 2^4; f16 fits whole.
constexpr int kFirstTop = 5;
constexpr int kF16Top = 15;
// Room above the largest value of the last step.
constexpr int kTopMargin = 4;

}  // namespace

Result<std::unique_ptr<Codec>> create_exact(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  return std::unique_ptr<Codec>(std::make_unique<ExactCodec>(layout, *options));
}

ExactCodec::ExactCodec(const Layout& layout, const Options& options)
    : SteppedCodec(layout), options_(options) {
  if (options.density >= 0) {
    seen_.nonzeros =
        static_cast<uint64_t>(std::ceil(options.density * static_cast<double>(layout.count)));
  }
  make_plan();
}

void ExactCodec::make_plan() {
  mode_ = choose(layout(), options_, seen_);
  if (mode_ != Mode::kSketch) return;
  // Another seed every step: an unlucky set of keys is not unlucky for ever.
  const uint64_t seed = addend_random(layout().seed ^ layout().bucket, seen_.steps);
  shape_ = SketchShape::plan(seen_.nonzeros, options_.lanes, 1, seed);
  const int unseen = layout().dtype == DType::kF16 ? kF16Top : kFirstTop;
  const int top = seen_.top == Observation::kNoTop ? unseen : seen_.top + kTopMargin;
  window_ = Window::at(std::clamp(top, kLowestBit, kHighestBit), layout().world);
}

uint64_t ExactCodec::fingerprint() const {
  Fingerprint print;
  print.add("exact").add(layout()).add(static_cast<uint64_t>(options_.mode));
  print.add(static_cast<uint64_t>(options_.values)).add(options_.tolerance).add(options_.block);
  print.add(options_.density).add(uint64_t{options_.lanes}).add(seen_.steps);
  print.add(static_cast<uint64_t>(mode_));
  if (mode_ == Mode::kSketch) {
    print.add(shape_.seed)
        .add(shape_.cells())
        .add(uint64_t{shape_.chunks})
        .add(uint64_t{shape_.hashes});
    print.add(static_cast<uint64_t>(int64_t{window_.top} + kTopBias));
  }
  return print.value();
}

uint64_t ExactCodec::words() const { return words_for(layout().count); }

uint64_t ExactCodec::memory_bytes() const {
  uint64_t total =
      two_level_.memory_bytes() + reproducible_.memory_bytes() + sketch_.memory_bytes();
  for (const Buffer* buffer : {&local_, &kept_, &index_, &values_, &ranges_, &cells_, &escape_,
                               &local_escape_, &quanta_, &keys_, &fix_up_, &fix_values_}) {
    total += buffer->capacity();
  }
  return total;
}

Status ExactCodec::do_begin(const void* gradient) {
  gradient_ = gradient;
  waiting_ = Waiting::kNothing;
  dense_values_ = peeled_ = false;
  union_ = fix_up_count_ = 0;
  draft().mode = mode_name(mode_);
  if (options_.mode == Mode::kSketch && mode_ == Mode::kPacked) draft().fallback = "first-step";
  return {};
}

Status ExactCodec::scan_gradient() {
  const uint64_t capacity = layout().count / kKeptShare + 64;
  ADDEND_TRY(local_.reserve(words() * 8));
  ADDEND_TRY(kept_.reserve(capacity * width() + Buffer::kSlack));
  const ScanResult found =
      scan(width(), gradient_, layout().count, local_.as<uint64_t>(), kept_.as<void>(), capacity);
  nonzeros_ = found.nonzeros;
  kept_all_ = found.kept == found.nonzeros;
  draft().local_nonzeros = nonzeros_;
  if (kept_all_ || (mode_ != Mode::kSketch && !reproducible())) return {};
  // Sketches and reproducible values look at the non-zeros themselves, however many there are.
  ADDEND_TRY(values_.reserve(nonzeros_ * width() + Buffer::kSlack));
  pack(width(), gradient_, layout().count, local_.as<uint64_t>(), values_.as<void>());
  return {};
}

NonZeros ExactCodec::nonzeros() const {
  return {local_.as<uint64_t>(), kept_all_ ? kept_.as<void>() : values_.as<void>(), layout().count};
}

Result<bool> ExactCodec::do_round(Round& round) {
  switch (waiting_) {
    case Waiting::kNothing: {
      if (layout().count == 0) return false;
      if (mode_ == Mode::kDense) return open_dense(round);
      ADDEND_TRY(scan_gradient());
      if (mode_ == Mode::kSketch && reproducible()) {
        ADDEND_TRY(open_ranges(round));
      } else if (mode_ == Mode::kSketch) {
        ADDEND_TRY(open_sketch(round));
      } else if (mode_ == Mode::kTwoLevel) {
        ADDEND_TRY(open_blocks(round));
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
      two_level_.write_union(index());
      return close_index(round);
    case Waiting::kIndex:
      return close_index(round);
    case Waiting::kSketch:
      return close_sketch(round);
    case Waiting::kLast:
      return false;
  }
  return false;
}

// -------------------------------------------------------------------------------------------------------------

Result<bool> ExactCodec::open_dense(Round& round) {
  dense_values_ = true;
  ADDEND_TRY(values_.reserve(draft().dense_bytes));
  std::memcpy(values_.as<void>(), gradient_, draft().dense_bytes);
  round.add({sum_op(layout().dtype), layout().count, values_.as<void>(), nullptr, nullptr});
  waiting_ = Waiting::kLast;
  return true;
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
  ADDEND_TRY(index_.reserve(words() * 8));
  std::memcpy(index(), local_.as<void>(), words() * 8);
  round.add({Op::kOrU64, words(), index(), nullptr, nullptr});
  if (reproducible()) ADDEND_TRY(open_ranges(round));
  waiting_ = Waiting::kIndex;
  return {};
}

Status ExactCodec::open_blocks(Round& round) {
  ADDEND_TRY(index_.reserve(words() * 8));
  ADDEND_TRY(two_level_.set_blocks(local_.as<uint64_t>(), layout().count, options_.block));
  round.add(two_level_.live_plane());
  round.add(two_level_.partial_plane());
  if (reproducible()) ADDEND_TRY(open_ranges(round));
  waiting_ = Waiting::kBlocks;
  return {};
}

// ----------------------------------------------------------------------------------------------------------------

Result<bool> ExactCodec::close_blocks(Round& round) {
  ADDEND_TRY(two_level_.set_elements(local_.as<uint64_t>()));
  const Plane elements = two_level_.element_plane();
  if (elements.lanes == 0) {
    two_level_.write_union(index());
    return close_index(round);
  }
  round.add(elements);
  waiting_ = Waiting::kElements;
  return true;
}

// Takes in a folded index. Bits past the end are dropped, as everyone does; a bit of our own that
// is missing is an adder's fault, and packing by such an index would silently lose values.
Status ExactCodec::accept_union() {
  if (layout().count % 64 != 0) index()[words() - 1] &= low_mask(layout().count % 64);
  const auto* local = local_.as<uint64_t>();
  uint64_t lost = 0;
  for (uint64_t w = 0; w < words(); ++w)
    lost |= local[w] & ~index()[w];
  if (lost != 0) {
    return make_error(
        Errc::kUndecodable,
        "the union that came back lacks non-zeros of this worker: an adder lost index bits");
  }
  union_ = popcount({index(), words()});
  draft().union_nonzeros = union_;
  return {};
}

Result<bool> ExactCodec::close_index(Round& round) {
  ADDEND_TRY(accept_union());
  return open_values(round);
}

Result<bool> ExactCodec::open_values(Round& round) {
  waiting_ = Waiting::kLast;
  if (union_ == 0) return false;
  ADDEND_TRY(values_.reserve(union_ * width() + Buffer::kSlack));
  if (reproducible()) {
    ADDEND_TRY(reproducible_.set_ranges(ranges_.as<uint32_t>(), layout().count, layout().world,
                                        options_.tolerance));
    ADDEND_TRY(reproducible_.pack(layout().dtype, gradient_, index()));
    for (const Plane& plane : {reproducible_.narrow_plane(), reproducible_.wide_plane()}) {
      if (plane.lanes > 0) round.add(plane);
    }
    draft().escaped_values = reproducible_.escaped();
    return true;
  }
  if (nearly_dense(union_, layout().count)) {
    draft().fallback = "dense";
    return open_dense(round);
  }
  if (kept_all_) {
    place(width(), kept_.as<void>(), local_.as<uint64_t>(), words(), index(), values_.as<void>());
  } else {
    pack(width(), gradient_, layout().count, index(), values_.as<void>());
  }
  round.add({sum_op(layout().dtype), union_, values_.as<void>(), nullptr, nullptr});
  return true;
}

// -----------------------------------------------------------------------------------------------------------------

Status ExactCodec::do_finish(void* gradient) {
  if (peeled_) {
    ADDEND_TRY(assemble_sketch());
  } else if (reproducible() && union_ > 0) {
    reproducible_.unpack(layout().dtype, index(), values_.as<void>());
  }
  if (dense_values_) {
    std::memcpy(gradient, values_.as<void>(), draft().dense_bytes);
  } else if (union_ == 0) {
    if (draft().dense_bytes > 0) std::memset(gradient, 0, draft().dense_bytes);
  } else {
    unpack(width(), values_.as<void>(), index(), layout().count, gradient);
  }
  observe();
  return {};
}

void ExactCodec::observe() {
  ++seen_.steps;
  if (mode_ == Mode::kDense) {
    ++seen_.dense_steps;
  } else {
    seen_.dense_steps = 0;
    seen_.nonzeros = union_;
    if (mode_ == Mode::kSketch && !reproducible()) {
      // A lane beyond any float's top comes from a broken adder; it must not overflow here.
      const auto top = static_cast<int>(std::min<uint32_t>(top_lane_, kTopBias + kHighestBit));
      seen_.top = top == 0 ? Observation::kNoTop : top - kTopBias;
    }
    if (surveys_blocks(options_, seen_)) survey_blocks();
  }
  make_plan();
}

// What the two-level form of this union would cost, for the next choice.
void ExactCodec::survey_blocks() {
  seen_.live_blocks = seen_.element_bits = 0;
  if (union_ == 0) return;
  for (uint64_t begin = 0; begin < layout().count; begin += options_.block) {
    const uint64_t length = std::min(options_.block, layout().count - begin);
    const uint64_t set = popcount_range(index(), begin, begin + length);
    seen_.live_blocks += set > 0 ? 1 : 0;
    seen_.element_bits += set > 0 && set < length ? length : 0;
  }
}

}  // namespace addend::exact
