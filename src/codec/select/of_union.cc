// SPDX-License-Identifier: Apache-2.0
// Selectors by which each worker chooses for itself: what it chose is a sparse gradient, and the
// union of all of them travels as exact sends it.
#include <cmath>
#include <cstring>

#include "base/bits.h"
#include "codec/select/agreed.h"
#include "codec/select/select.h"
#include "wire/element.h"

namespace addend::select {
namespace {

class UnionSelect final : public SelectCodec {
 public:
  using SelectCodec::SelectCodec;

  Status make() {
    const uint64_t bytes = layout().count * dtype_bytes(layout().dtype);
    ADDEND_TRY(set_up(layout().count));
    ADDEND_TRY(kept_.reserve(words() * 8));
    ADDEND_TRY(masked_.reserve(bytes));
    if (bytes == 0) return {};
    std::memset(kept_.as<void>(), 0, words() * 8);
    std::memset(masked_.as<void>(), 0, bytes);
    return {};
  }

  uint64_t memory_bytes() const override {
    return SelectCodec::memory_bytes() + kept_.capacity() + masked_.capacity();
  }

 private:
  void add_plan(Fingerprint& print) const override { print.add(carrier_->fingerprint()); }

  Result<bool> do_round(Round& round) override {
    if (layout().count == 0) return false;
    if (!selected_) {
      ADDEND_TRY(select());
      ADDEND_TRY(carrier_->begin(masked_.as<void>()));
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
    settle(kept_.as<uint64_t>());
    return {};
  }

  Status select() {
    write_kept([](uint64_t) { return 0.0f; });  // what the last step left there
    std::memset(kept_.as<void>(), 0, words() * 8);
    const bool counts =
        options_.selector == Selector::kTopk || options_.selector == Selector::kThreshold;
    all_.clear();
    uint64_t kept = 0;
    for (Part& part : parts_) {
      ADDEND_TRY(add_up(part, counts ? &counted_ : nullptr));
      if (part.end > part.begin) kept += keep(part);
      if (counts) all_.add(counted_);
    }
    double energy = 0;
    write_kept([&](uint64_t i) {
      const float element = sums_.as<float>()[i];
      if (std::isfinite(element))
        energy += static_cast<double>(element) * static_cast<double>(element);
      return sent(element);
    });
    draft().local_nonzeros = kept;
    if (counts) {
      report_energy(all_.energy(), energy);
    } else {
      sample_energy(kept_.as<uint64_t>());
    }
    return {};
  }

  uint64_t keep(const Part& part) {
    const Field field = field_of(part, kept_.as<uint64_t>());
    switch (options_.selector) {
      case Selector::kThreshold:
        return keep_above(field, counted_, kept_of(part));
      case Selector::kDgc:
        return keep_sampled(field, kept_of(part), draw_of(part));
      case Selector::kRedsync:
        return keep_bisected(field, kept_of(part));
      default:
        return keep_largest(field, counted_, kept_of(part));
    }
  }

  template <typename Value>
  void write_kept(const Value& value) {
    const auto* kept = kept_.as<uint64_t>();
    for (uint64_t w = 0; w < words(); ++w) {
      for_each_bit(kept[w], w * 64, [&](uint64_t i) {
        store_float(layout().dtype, masked_.as<void>(), i, value(i));
      });
    }
  }

  Histogram counted_, all_;  // of a part, of all
  Buffer kept_;              // bitmap: what was selected
  Buffer masked_;            // elements of the layout's type, zero where nothing was selected
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
