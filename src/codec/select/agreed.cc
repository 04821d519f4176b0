// SPDX-License-Identifier: Apache-2.0
#include "codec/select/agreed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/bits.h"
#include "base/chunks.h"
#include "codec/index/union_index.h"
#include "codec/select/select.h"
#include "wire/element.h"

namespace addend::select {
namespace {

/// Positions are drawn by a seed that all share, or told by the leader of the step: the only one
/// that sets bits. Values follow as a short dense gradient, so that their sum is no larger than one
/// worker's.
class AgreedSelect final : public SelectCodec {
 public:
  using SelectCodec::SelectCodec;

  Status make() {
    total_ = 0;
    for (const Part& part : parts_)
      total_ += kept_of(part);
    Layout values = layout();
    values.segments.clear();
    values.count = total_;
    Result<std::unique_ptr<Codec>> carrier = create_codec(options_.carrier, values);
    ADDEND_TRY(carrier);
    carrier_ = std::move(*carrier);
    ADDEND_TRY(set_up());
    index_.start(4, nullptr, layout().count);
    ADDEND_TRY(index_.reserve_bitmap());
    ADDEND_TRY(own_.reserve(leads_in_turn() ? words() * 8 : 0));
    return values_.reserve(total_ * dtype_bytes(layout().dtype) + Buffer::kSlack);
  }

  uint64_t memory_bytes() const override {
    return SelectCodec::memory_bytes() + carrier_->memory_bytes() + index_.memory_bytes() +
           own_.capacity() + values_.capacity();
  }

 private:
  bool leads_in_turn() const { return options_.selector == Selector::kLeader; }
  uint32_t leader() const { return static_cast<uint32_t>(step_ % layout().world); }

  Result<bool> do_round(Round& round) override {
    if (layout().count == 0) return false;
    if (!selected_) {
      selected_ = told_ = true;
      carrier_->cancel();  // a step that was given up has left it where it was
      std::memset(index_.bitmap(), 0, words() * 8);
      index_.start(dtype_bytes(layout().dtype), nullptr, layout().count);
      chosen_.start(index_.bitmap());
      for (Part& part : parts_)
        choose(part);
      if (leads_in_turn()) return open_index(round);
      ADDEND_TRY(begin_values());
    } else if (told_ && leads_in_turn()) {
      ADDEND_TRY(check_index());
      for (Part& part : parts_) {
        if (!leads()) extract(part);
      }
      ADDEND_TRY(begin_values());
    }
    told_ = false;
    return carrier_->next_round(round);
  }

  bool leads() const { return leads_in_turn() && leader() == layout().worker; }

  void choose(Part& part) {
    if (part.count() == 0) return;
    if (!leads_in_turn()) {
      keep_drawn(part.begin, part.end, kept_of(part), draw_of(part), index_.bitmap());
      return add_up_and_extract(part);
    }
    if (!leads()) return add_up(part, nullptr);
    if (take_above_last_cut(part)) return;
    add_up(part, &histogram_);
    keep_exactly(part);
    extract(part);
  }

  // The number of positions is everybody's, so zeros fill it up, and what is not finite has no
  // place beyond it.
  void keep_exactly(const Part& part) {
    const Field field = field_of(part);
    const uint64_t wanted = kept_of(part);
    uint64_t kept = keep_largest(field, histogram_, wanted);
    for (uint64_t i = part.begin; kept < wanted; ++i) {
      kept += test_bit(field.kept, i) ? 0 : 1;
      set_bit(field.kept, i);
    }
    for (uint64_t i = part.end; kept > wanted;) {
      if (!test_bit(field.kept, --i)) continue;
      field.kept[i / 64] &= ~(uint64_t{1} << i % 64);
      --kept;
    }
  }

  Result<bool> open_index(Round& round) {
    std::memcpy(own_.as<void>(), index_.bitmap(), words() * 8);
    round.add({Op::kOrU64, words(), index_.bitmap(), nullptr, nullptr});
    return true;
  }

  Status check_index() {
    index_.close_bitmap();
    if (index_.size() == total_ &&
        (!leads() || std::memcmp(own_.as<void>(), index_.bitmap(), words() * 8) == 0)) {
      return {};
    }
    return make_error(Errc::kUndecodable, "the index of worker " + std::to_string(leader()) +
                                              ", who leads, came back with " +
                                              std::to_string(index_.size()) + " positions, not " +
                                              std::to_string(total_) + " of its own");
  }

  Status begin_values() {
    if (!leads_in_turn()) index_.close_bitmap();
    round_chosen(true);
    const uint64_t width = dtype_bytes(layout().dtype);
    auto* to = values_.as<uint8_t>();
    for (uint64_t chunk = 0; chunk < chosen_.counts().size(); ++chunk) {
      const uint64_t bytes = chosen_.counts()[chunk] * width;
      std::memcpy(to, chosen_.values(chunk), bytes);
      to += bytes;
    }
    draft().local_nonzeros = draft().union_nonzeros = total_;
    spoil();
    return carrier_->begin_in_place(values_.as<void>());
  }

  // What is not finite must be seen by everybody, also where it does not travel.
  void spoil() {
    uint64_t first = 0;
    for (const Part& part : parts_) {
      bool hidden = false;
      for (uint64_t i = part.begin; !part.finite && i < part.end; ++i)
        hidden |= !std::isfinite(sums_.as<float>()[i]);
      if (hidden) {
        store_float(layout().dtype, values_.as<void>(), first,
                    std::numeric_limits<float>::quiet_NaN());
      }
      first += kept_of(part);
    }
  }

  Status do_finish(void* gradient) override {
    if (layout().count > 0) {
      ADDEND_TRY(carrier_->finish(values_.as<void>()));
      index_.scatter(values_.as<void>(), gradient);
    }
    settle();
    return {};
  }

  uint64_t total_ = 0;  // elements that travel
  bool told_ = false;   // positions are under way
  Histogram histogram_;
  index::UnionIndex index_;
  std::unique_ptr<Codec> carrier_;
  Buffer own_;     // bitmap: what this worker told as the leader
  Buffer values_;  // elements of the layout's type: what travels, side by side
};

}  // namespace

Result<std::unique_ptr<Codec>> create_agreed(const Layout& layout, const Options& options) {
  auto codec = std::make_unique<AgreedSelect>(layout, options);
  ADDEND_TRY(codec->make());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::select
