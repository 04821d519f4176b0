// SPDX-License-Identifier: Apache-2.0
// Selectors by which each worker chooses for itself: what it chose are the non-zeros of a gradient,
// and the union of all of them travels as exact sends it.
#include <cstring>

#include "base/bits.h"
#include "codec/exact/exact.h"
#include "codec/exact/options.h"
#include "codec/select/agreed.h"
#include "codec/select/select.h"

namespace addend::select {
namespace {

class UnionSelect final : public SelectCodec {
 public:
  using SelectCodec::SelectCodec;

  Status make() {
    const Result<exact::Options> carried = exact::read_options(options_.carrier);
    ADDEND_TRY(carried);
    carrier_ = std::make_unique<exact::ExactCodec>(layout(), *carried);
    ADDEND_TRY(set_up());
    return kept_.reserve(words() * 8);
  }

  uint64_t memory_bytes() const override {
    return SelectCodec::memory_bytes() + carrier_->memory_bytes() + kept_.capacity();
  }

 private:
  void add_plan(Fingerprint& print) const override { print.add(carrier_->fingerprint()); }

  Result<bool> do_round(Round& round) override {
    if (layout().count == 0) return false;
    if (!selected_) {
      carrier_->cancel();  // a step that was given up has left it where it was
      select();
      ADDEND_TRY(carrier_->begin_sparse(chosen_.sparse()));
      selected_ = true;
    }
    return carrier_->next_round(round);
  }

  Status do_finish(void* gradient) override {
    if (layout().count > 0) {
      ADDEND_TRY(carrier_->finish(gradient));
      const Report& carried = carrier_->report();
      draft().union_nonzeros = carried.union_nonzeros;
      draft().cells = carried.cells;
      draft().stuck_keys = carried.stuck_keys;
      draft().escaped_values = carried.escaped_values;
      draft().fallback = carried.fallback;
    }
    settle();
    return {};
  }

  bool counts() const {
    return options_.selector == Selector::kTopk || options_.selector == Selector::kThreshold;
  }

  void select() {
    std::memset(kept_.as<void>(), 0, words() * 8);
    chosen_.start(kept_.as<uint64_t>());
    for (Part& part : parts_) {
      if (part.count() == 0 || (counts() && take_above_last_cut(part))) continue;
      add_up(part, counts() ? &counted_ : nullptr);
      keep(part);
      extract(part);
    }
    round_chosen(false);
    draft().local_nonzeros = chosen_.size();
  }

  void keep(const Part& part) {
    const Field field = field_of(part);
    switch (options_.selector) {
      case Selector::kThreshold:
        keep_above(field, counted_, kept_of(part));
        break;
      case Selector::kDgc:
        keep_sampled(field, kept_of(part), draw_of(part));
        break;
      case Selector::kRedsync:
        keep_bisected(field, kept_of(part));
        break;
      default:
        keep_largest(field, counted_, kept_of(part));
    }
  }

  std::unique_ptr<exact::ExactCodec> carrier_;
  Histogram counted_;  // of a part
  Buffer kept_;        // bitmap: what was selected
};

}  // namespace

Result<std::unique_ptr<Codec>> create_select(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  if (agrees_on_positions(options->selector)) return create_agreed(layout, *options);
  auto codec = std::make_unique<UnionSelect>(layout, *options);
  ADDEND_TRY(codec->make());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::select
