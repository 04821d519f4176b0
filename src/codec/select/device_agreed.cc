// SPDX-License-Identifier: Apache-2.0
// agreed.cc on a device.
#include <string>
#include <utility>

#include "base/bits.h"
#include "codec/dense/device_dense.h"
#include "codec/index/union_kernels.h"
#include "codec/select/device_select.h"

namespace addend::select {
namespace {

using index::IndexKernels;
using index::UnionKernels;

class DeviceAgreed final : public DeviceSelect {
 public:
  using DeviceSelect::DeviceSelect;

  Status make() {
    Layout values = layout();
    values.segments.clear();
    values.count = total();
    Result<std::unique_ptr<Codec>> carrier = create_dense_on_device(options_.carrier, values);
    ADDEND_TRY(carrier);
    carrier_ = std::move(*carrier);
    ADDEND_TRY(set_up());
    const cuda::OnDevice here(device_);
    ADDEND_TRY(values_.reserve(total() * width()));
    return leads_in_turn() ? make_index() : Status();
  }

  uint64_t memory_bytes() const override {
    uint64_t bytes = DeviceSelect::memory_bytes() + carrier_->memory_bytes();
    for (const cuda::DeviceBuffer* buffer :
         {&values_, &elements_, &own_, &bitmap_, &offsets_, &bases_, &counts_})
      bytes += buffer->capacity();
    return bytes;
  }

 private:
  bool leads_in_turn() const { return options_.selector == Selector::kLeader; }
  uint32_t leader() const { return static_cast<uint32_t>(step_ % layout().world); }
  bool leads() const { return leads_in_turn() && leader() == layout().worker; }
  uint32_t width() const { return dtype_bytes(layout().dtype); }
  uint64_t bitmap_bytes() const {
    return index::tiles_for(width(), layout().count) * index::tile_elements(width()) / 8;
  }

  Status make_index() {
    const auto of_index = cuda::part<IndexKernels>();
    ADDEND_TRY(of_index);
    index_ = *of_index;
    const auto of_union = cuda::part<UnionKernels>();
    ADDEND_TRY(of_union);
    union_ = *of_union;
    const uint64_t count = layout().count;
    ADDEND_TRY(counted_.open());
    ADDEND_TRY(elements_.reserve(total() * 4));
    ADDEND_TRY(own_.reserve(bitmap_bytes()));
    ADDEND_TRY(bitmap_.reserve(bitmap_bytes()));
    ADDEND_TRY(offsets_.reserve(index::tiles_for(width(), count) * sizeof(uint32_t)));
    ADDEND_TRY(bases_.reserve(ceil_div(count, index::kGroupBits) * sizeof(uint64_t)));
    return counts_.reserve(sizeof(index::Totals));
  }

  Result<bool> do_round(Round& round) override {
    if (layout().count == 0) return false;
    const cuda::OnDevice here(device_);
    if (!selected_) {
      selected_ = told_ = true;
      carrier_->cancel();  // a step that was given up has left it where it was
      ADDEND_TRY(add_up(leads()));
      if (leads_in_turn()) return open_index(round);
      ADDEND_TRY(check(kernels_.draw(args_, total(), values_.as<void>(), stream()),
                       "taking what is drawn"));
      ADDEND_TRY(begin_values());
    } else if (told_ && leads_in_turn()) {
      ADDEND_TRY(check_index());
      ADDEND_TRY(take_positions());
      ADDEND_TRY(begin_values());
    }
    told_ = false;
    const Result<bool> more = carrier_->next_round(round);
    if (more && !*more) {
      ADDEND_TRY(take_letter());
      draft().local_nonzeros = draft().union_nonzeros = total();
    }
    return more;
  }

  // The leader marks, all others have no bits.
  Result<bool> open_index(Round& round) {
    ADDEND_TRY(clear(own_, bitmap_bytes()));
    if (leads()) {
      ADDEND_TRY(check(kernels_.find_cuts(args_, stream()), "finding where to cut"));
      ADDEND_TRY(check(kernels_.mark(args_, own_.as<uint64_t>(), stream()), "selecting"));
    }
    ADDEND_TRY(
        check(device_.runtime->copy(bitmap_.as<void>(), own_.as<void>(), bitmap_bytes(), stream()),
              "copying an index"));
    round.add({Op::kOrU64, words_for(layout().count), bitmap_.as<void>(), nullptr, nullptr});
    return true;
  }

  Status check_index() {
    ADDEND_TRY(clear(counts_, sizeof(index::Totals)));
    const index::CountCall call{width(),
                                layout().count,
                                bitmap_.as<uint64_t>(),
                                own_.as<uint64_t>(),
                                offsets_.as<uint32_t>(),
                                bases_.as<uint64_t>(),
                                0,
                                counts_.as<index::Totals>(),
                                counted_.address(),
                                counted_.expect()};
    ADDEND_TRY(check(index_->count(call, stream()), "counting positions"));
    const Result<const cuda::Mail*> mail = counted_.wait();
    ADDEND_TRY(mail);
    const uint64_t size = (*mail)->numbers[0];
    if (size == total() && (*mail)->numbers[3] == 0) return {};
    return make_error(Errc::kUndecodable, "the index of worker " + std::to_string(leader()) +
                                              ", who leads, came back with " +
                                              std::to_string(size) + " positions, not " +
                                              std::to_string(total()) + " of its own");
  }

  index::CountedUnion counted_union() const {
    return {width(),
            layout().count,
            bitmap_.as<uint64_t>(),
            offsets_.as<uint32_t>(),
            bases_.as<uint64_t>(),
            counts_.as<index::Totals>()};
  }

  // Where the index says; what rounding leaves goes back there.
  Status take_positions() {
    const index::GatherCall call{counted_union(), DType::kF32, args_.left,           true,
                                 nullptr,         nullptr,     elements_.as<float>()};
    ADDEND_TRY(check(union_->gather(call, stream()), "gathering values"));
    ADDEND_TRY(
        check(kernels_.round(args_, total(), elements_.as<float>(), values_.as<void>(), stream()),
              "rounding values"));
    return check(union_->put(counted_union(), elements_.as<float>(), args_.left, stream()),
                 "keeping what is owed");
  }

  Status begin_values() {
    ADDEND_TRY(check(kernels_.spoil(args_, values_.as<void>(), stream()), "looking for NaN"));
    ADDEND_TRY(tell());
    return carrier_->begin_in_place(values_.as<void>());
  }

  Status do_finish(void* gradient) override {
    if (layout().count > 0) {
      const cuda::OnDevice here(device_);
      ADDEND_TRY(carrier_->finish(values_.as<void>()));
      ADDEND_TRY(leads_in_turn() ? unpack(gradient) : scatter(gradient));
    }
    settle();
    return {};
  }

  Status scatter(void* gradient) {
    ADDEND_TRY(check(device_.runtime->fill(gradient, 0, layout().count * width(), stream()),
                     "clearing a gradient"));
    return check(kernels_.scatter(args_, total(), values_.as<void>(), gradient, stream()),
                 "putting values in their places");
  }

  Status unpack(void* gradient) {
    const index::UnpackCall call{width(),
                                 values_.as<void>(),
                                 bitmap_.as<uint64_t>(),
                                 offsets_.as<uint32_t>(),
                                 bases_.as<uint64_t>(),
                                 layout().count,
                                 true,
                                 gradient};
    return check(index_->unpack(call, stream()), "unpacking values");
  }

  bool told_ = false;  // positions are under way
  const IndexKernels* index_ = nullptr;
  const UnionKernels* union_ = nullptr;
  std::unique_ptr<Codec> carrier_;
  cuda::DeviceBuffer values_{device_.runtime};  // what travels, side by side
  // Of leader:
  cuda::DeviceBuffer elements_{device_.runtime};  // float: the same, then what rounding left
  cuda::DeviceBuffer own_{device_.runtime};       // bitmap: what this worker tells
  cuda::DeviceBuffer bitmap_{device_.runtime};    // plane: positions
  cuda::DeviceBuffer offsets_{device_.runtime}, bases_{device_.runtime}, counts_{device_.runtime};
  cuda::Mailbox counted_{device_};
};

}  // namespace

Result<std::unique_ptr<Codec>> create_agreed_on_device(const Layout& layout, const Options& options,
                                                       const cuda::Device& device,
                                                       const SelectKernels& kernels) {
  auto codec = std::make_unique<DeviceAgreed>(layout, options, device, kernels);
  ADDEND_TRY(codec->make());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::select
