// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/plan.h"

#include <algorithm>
#include <cmath>

#include "codec/fingerprint.h"

namespace addend::exact {
namespace {

// The window of the first sketch: values from 2^-30 to 2^5 keep all their bits for worlds up to
// 2^4; f16 fits whole.
constexpr int kFirstTop = 5;
constexpr int kF16Top = 15;
// Room above the largest value of the last step.
constexpr int kTopMargin = 4;

}  // namespace

Plan::Plan(const Layout& layout, const Options& options) : layout_(layout), options_(options) {
  seen_.steps = layout.first_step;
  if (options.block != 0) seen_.block = options.block;
  if (options.density >= 0) {
    seen_.nonzeros = seen_.capacity =
        static_cast<uint64_t>(std::ceil(options.density * static_cast<double>(layout.count)));
  }
  make();
}

void Plan::make() {
  mode_ = choose(layout_, options_, seen_);
  counts_own_ = exact::counts_own(mode_, layout_, options_, seen_);
  // Another seed every step: an unlucky set of keys is not unlucky for ever.
  const uint64_t seed = addend_random(layout_.seed ^ layout_.bucket, seen_.steps);
  if (mode_ == Mode::kBloom) filter_ = plan_filter(layout_, options_, seen_, seed);
  if (mode_ != Mode::kSketch) return;
  shape_ = SketchShape::plan(seen_.capacity, options_.lanes, 1, seed);
  const int unseen = layout_.dtype == DType::kF16 ? kF16Top : kFirstTop;
  const int top = seen_.top == Observation::kNoTop ? unseen : seen_.top + kTopMargin;
  window_ = Window::at(std::clamp(top, kLowestBit, kHighestBit), layout_.world);
}

uint64_t Plan::fingerprint() const {
  Fingerprint print;
  print.add("exact").add(layout_).add(static_cast<uint64_t>(options_.mode));
  print.add(static_cast<uint64_t>(options_.values)).add(options_.tolerance);
  print.add(options_.block == 0 ? kDefaultBlock : options_.block);
  print.add(options_.density).add(uint64_t{options_.lanes}).add(seen_.steps);
  if (options_.mode == Mode::kAuto && options_.choice == Choice::kDevice) print.add("device");
  print.add(static_cast<uint64_t>(mode_));
  if (counts_own_) print.add("own");
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

void Plan::count_dense_step() {
  ++seen_.steps;
  ++seen_.dense_steps;
  make();
}

// After a run of dense steps what was seen before it is no more than a guess.
bool Plan::wants_look(uint64_t union_size) const {
  return seen_.dense_steps > 0 || !unions_.any() || union_size / 2 > seen_.nonzeros;
}

bool Plan::will_want_survey() const {
  Observation counted = seen_;
  ++counted.steps;
  return surveys_blocks(options_, counted);
}

bool Plan::count_step(uint64_t union_size) {
  const bool looks = wants_look(union_size);
  ++seen_.steps;
  looked_ = seen_.dense_steps > 0;
  if (looked_) unions_.clear();
  return looks;
}

void Plan::learn(uint64_t union_size, uint32_t top) {
  unions_.add(union_size);
  seen_.dense_steps = 0;
  seen_.mode = mode_;
  seen_.nonzeros = unions_.expected();
  seen_.capacity = std::min(unions_.capacity(), layout_.count);
  if (mode_ == Mode::kSketch && options_.values != Values::kReproducible) {
    // A lane beyond any float's top comes from a broken adder; it must not overflow here.
    const auto lane = static_cast<int>(std::min<uint32_t>(top, kTopBias + kHighestBit));
    seen_.top = lane == 0 ? Observation::kNoTop : lane - kTopBias;
  }
}

void Plan::survey(const uint64_t* bitmap) {
  seen_.live_blocks = seen_.element_bits = 0;
  if (bitmap != nullptr) survey_blocks(layout_, options_, bitmap, seen_);
}

void Plan::decide() {
  make();
  // Looks that find nothing new become rarer.
  if (mode_ != Mode::kDense) {
    seen_.look_after = 1;
  } else if (looked_) {
    seen_.look_after = std::min(2 * seen_.look_after, options_.probe);
  }
}

}  // namespace addend::exact
