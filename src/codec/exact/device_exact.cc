// SPDX-License-Identifier: Apache-2.0
// The steps are ExactCodec's, the plan is the same object, and planes have the same bytes. What
// differs is when the host knows things: the size of the union by a letter, for which next_round
// waits; whether sums are finite, where that matters to the next plan, when that plan is asked for.
#include "codec/exact/device_exact.h"

#include <algorithm>
#include <array>
#include <span>

#include "codec/dense/device_dense.h"
#include "codec/exact/plan.h"
#include "codec/index/device_two_level.h"
#include "codec/index/index_kernels.h"
#include "codec/index/union_index.h"
#include "codec/step.h"
#include "cuda/memory.h"

namespace addend::exact {
namespace {

using index::IndexKernels;

class DeviceExactCodec final : public SteppedCodec {
 public:
  DeviceExactCodec(const Layout& layout, const Options& options, const cuda::Device& device,
                   const IndexKernels& kernels)
      : SteppedCodec(layout),
        plan_(this->layout(), options),
        device_(device),
        kernels_(kernels),
        two_level_(device, kernels),
        counted_(device),
        looked_(device) {}

  Status open() {
    const cuda::OnDevice here(device_);
    ADDEND_TRY(counted_.open());
    ADDEND_TRY(looked_.open());
    ADDEND_TRY(two_level_.open());
    return totals_.reserve(sizeof(index::Totals) + sizeof(uint64_t));
  }

  uint64_t fingerprint() const override { return settled().fingerprint(); }
  std::string_view next_mode() const override { return mode_name(settled().mode()); }
  uint64_t memory_bytes() const override {
    uint64_t total = two_level_.memory_bytes();
    for (const cuda::DeviceBuffer* buffer :
         {&local_, &bitmap_, &kept_, &offsets_, &bases_, &totals_, &values_})
      total += buffer->capacity();
    return total;
  }

 private:
  enum class Waiting : uint8_t { kNothing, kIndex, kBlocks, kElements, kLast };

  Status do_begin(const void* gradient) override {
    settled();
    ADDEND_TRY(settling_);
    gradient_ = gradient;
    waiting_ = Waiting::kNothing;
    dense_plane_ = nullptr;
    union_ = 0;
    negative_zeros_ = false;
    draft().mode = mode_name(plan_.mode());
    return {};
  }

  Result<bool> do_round(Round& round) override {
    if (layout().count == 0 || waiting_ == Waiting::kLast) return false;
    const cuda::OnDevice here(device_);
    if (waiting_ == Waiting::kIndex) return close_index(round);
    if (waiting_ == Waiting::kBlocks) return close_blocks(round);
    if (waiting_ == Waiting::kElements) return close_elements(round);
    if (plan_.mode() == Mode::kDense) {
      ADDEND_TRY(open_dense(round));
    } else if (plan_.mode() == Mode::kTwoLevel) {
      // The survey at the end of a step wants the union as a bitmap, and must not fail then.
      if (plan_.options().mode == Mode::kAuto)
        ADDEND_TRY(bitmap_.reserve(words_for(layout().count) * 8));
      ADDEND_TRY(two_level_.open_blocks(layout().dtype, gradient_, layout().count,
                                        plan_.seen().block, round));
      waiting_ = Waiting::kBlocks;
    } else {
      ADDEND_TRY(open_index(round));
    }
    return true;
  }

  Status open_dense(Round& round) {
    const Result<void*> plane =
        add_dense_plane(layout(), {gradient_, lent()}, device_, values_, round);
    ADDEND_TRY(plane);
    dense_plane_ = *plane;
    waiting_ = Waiting::kLast;
    return {};
  }

  Status open_index(Round& round) {
    const uint64_t count = layout().count, tiles = index::tiles_for(width(), count);
    const uint64_t bits = tiles * index::tile_elements(width());
    ADDEND_TRY(local_.reserve(bits / 8));
    ADDEND_TRY(bitmap_.reserve(bits / 8));
    ADDEND_TRY(reserve_kept(tiles * index::kSlotBytes));
    ADDEND_TRY(offsets_.reserve(tiles * sizeof(uint32_t)));
    ADDEND_TRY(bases_.reserve(ceil_div(count, index::kGroupBits) * sizeof(uint64_t)));
    const index::ScanCall call{width(),
                               gradient_,
                               count,
                               local_.as<uint64_t>(),
                               bitmap_.as<uint64_t>(),
                               kept_.as<void>(),
                               totals_.as<index::Totals>()};
    if (!cleared_)
      ADDEND_TRY(device_.check(
          device_.runtime->fill(totals_.as<void>(), 0, sizeof(index::Totals), device_.stream),
          "clearing totals"));
    cleared_ = false;
    ADDEND_TRY(device_.check(kernels_.scan(call, device_.stream), "scanning a gradient"));
    round.add({Op::kOrU64, words_for(count), bitmap_.as<void>(), nullptr, nullptr});
    waiting_ = Waiting::kIndex;
    return {};
  }

  // Slots are read before it is known whether they hold something.
  Status reserve_kept(uint64_t bytes) {
    if (bytes <= kept_.capacity()) return {};
    ADDEND_TRY(kept_.reserve(bytes));
    return device_.check(device_.runtime->fill(kept_.as<void>(), 0, bytes, device_.stream),
                         "clearing slots");
  }

  Result<bool> close_index(Round& round) {
    const index::CountCall call{width(),
                                layout().count,
                                bitmap_.as<uint64_t>(),
                                local_.as<uint64_t>(),
                                offsets_.as<uint32_t>(),
                                bases_.as<uint64_t>(),
                                layout().count / index::kKeptShare,
                                totals_.as<index::Totals>(),
                                counted_.address(),
                                counted_.expect()};
    ADDEND_TRY(device_.check(kernels_.count(call, device_.stream), "counting a union"));
    // Values are packed while the host waits for their number, if the last union's room is enough.
    const uint64_t packed = values_.capacity() / width();
    if (packed > 0) ADDEND_TRY(pack_values(packed));
    const Result<const cuda::Mail*> mail = counted_.wait();
    ADDEND_TRY(mail);
    cleared_ = true;
    const uint64_t* found = (*mail)->numbers;
    union_ = draft().union_nonzeros = found[0];
    draft().local_nonzeros = found[1];
    negative_zeros_ = found[2] != 0;
    if (found[3] != 0) return index::lost_index_bits();
    waiting_ = Waiting::kLast;
    if (travels_as_it_is()) return open_dense_values(round);
    if (packed < union_) {
      // A union that grows a little finds room.
      ADDEND_TRY(values_.reserve((union_ + union_ / 4) * width()));
      ADDEND_TRY(pack_values(union_));
    }
    return add_values(round);
  }

  // Does nothing where the union turns out to be larger than `room`, or to travel as it is.
  Status pack_values(uint64_t room) {
    const uint64_t count = layout().count;
    const index::ExpandCall call{layout().dtype,
                                 gradient_,
                                 count,
                                 bitmap_.as<uint64_t>(),
                                 local_.as<uint64_t>(),
                                 offsets_.as<uint32_t>(),
                                 bases_.as<uint64_t>(),
                                 kept_.as<void>(),
                                 scale(),
                                 totals_.as<index::Totals>(),
                                 std::min(room, most_packed()),
                                 values_.as<void>()};
    return device_.check(kernels_.expand(call, device_.stream), "packing values");
  }

  Result<bool> close_blocks(Round& round) {
    const Result<bool> elements = two_level_.close_blocks(packed_values(), round);
    ADDEND_TRY(elements);
    draft().local_nonzeros = two_level_.nonzeros();
    negative_zeros_ = two_level_.negative_zeros();
    waiting_ = Waiting::kElements;
    return *elements ? true : open_block_values(round);
  }

  Result<bool> close_elements(Round& round) {
    ADDEND_TRY(two_level_.close_elements(packed_values()));
    return open_block_values(round);
  }

  Result<bool> open_block_values(Round& round) {
    union_ = draft().union_nonzeros = two_level_.size();
    waiting_ = Waiting::kLast;
    if (travels_as_it_is()) return open_dense_values(round);
    ADDEND_TRY(two_level_.pack(packed_values()));
    return add_values(round);
  }

  index::PackedValues packed_values() { return {scale(), most_packed(), &values_}; }

  // The largest union that is packed.
  uint64_t most_packed() const { return layout().count - layout().count / 1024 - 1; }
  bool travels_as_it_is() const { return union_ == 0 || nearly_dense(union_, layout().count); }

  Result<bool> open_dense_values(Round& round) {
    if (union_ == 0) return false;
    draft().fallback = "dense";
    ADDEND_TRY(open_dense(round));
    return true;
  }

  Result<bool> add_values(Round& round) {
    round.add({sum_op(layout().dtype), union_, values_.as<void>(), nullptr, nullptr});
    round.last = true;
    return true;
  }

  Status do_finish(void* gradient) override {
    const cuda::OnDevice here(device_);
    const bool learns = plan_.mode() != Mode::kDense;
    if (learns) ADDEND_TRY(ask());  // may fail, and the gradient is not written yet
    if (dense_plane_ != nullptr) {
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

  // As UnionIndex::scatter.
  Status scatter(void* gradient) {
    const bool zeros_stand = gradient == gradient_ && !negative_zeros_;
    if (union_ == 0) {
      if (zeros_stand) return {};
      return device_.check(
          device_.runtime->fill(gradient, 0, layout().count * width(), device_.stream),
          "clearing a gradient");
    }
    if (plan_.mode() == Mode::kTwoLevel)
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

  void do_skip_step() override { plan_.count_dense_step(); }

  // Letters about the sums, for the plan of the next step.
  Status ask() {
    looks_ = plan_.wants_look(union_);
    surveys_ = plan_.will_want_survey() && union_ > 0;
    if (looks_) ADDEND_TRY(look_for_nonfinite());
    return surveys_ ? survey_blocks() : Status();
  }

  Status look_for_nonfinite() {
    const bool dense = dense_plane_ != nullptr;
    return device_.check(
        kernels_.look_for_nonfinite(layout().dtype, dense ? dense_plane_ : values_.as<void>(),
                                    dense ? layout().count : union_,
                                    reinterpret_cast<uint64_t*>(totals_.as<index::Totals>() + 1),
                                    looked_.address(), looked_.expect(), device_.stream),
        "looking at a sum");
  }

  Status survey_blocks() {
    if (plan_.mode() == Mode::kTwoLevel) ADDEND_TRY(two_level_.write_union(bitmap_.as<uint64_t>()));
    return two_level_.ask(bitmap_.as<uint64_t>(), layout().count, surveyed_sizes(plan_.options()));
  }

  void learn() const {
    plan_.learn(union_, 0);
    if (plan_.wants_survey()) plan_.survey(nullptr);  // of an empty union
    plan_.decide();
  }

  // The plan of the next step, once what the last one showed is known. It is a few bytes that were
  // asked for when the last step ended.
  const Plan& settled() const {
    if (!unsettled_) return plan_;
    unsettled_ = false;
    settling_ = settle();
    return plan_;
  }

  // Without all letters nothing is learned: a plan is never decided by half.
  Status settle() const {
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

  void learn_surveyed(std::span<const uint64_t> answer) const {
    plan_.learn(union_, 0);
    std::array<BlockCounts, kBlockSizes.size()> counts;
    for (std::size_t s = 0; s < counts.size(); ++s)
      counts[s] = {answer[2 * s], answer[2 * s + 1]};
    plan_.survey(counts);
    plan_.decide();
  }

  uint32_t width() const { return dtype_bytes(layout().dtype); }

  mutable Plan plan_;  // settled() completes it
  mutable bool unsettled_ = false;
  bool looks_ = false, surveys_ = false;  // what is asked then
  mutable Status settling_;               // why that failed: the next step cannot begin
  const cuda::Device device_;
  const IndexKernels& kernels_;

  // The step.
  const void* gradient_ = nullptr;
  Waiting waiting_ = Waiting::kNothing;
  uint64_t union_ = 0;
  bool negative_zeros_ = false;
  const void* dense_plane_ = nullptr;
  bool cleared_ = false;  // totals_, by the count of the last step

  index::DeviceTwoLevel two_level_;
  cuda::Mailbox counted_, looked_;
  cuda::DeviceBuffer local_{device_.runtime};   // bitmap of this worker
  cuda::DeviceBuffer bitmap_{device_.runtime};  // plane: bitmap, then the union
  cuda::DeviceBuffer kept_{device_.runtime};
  cuda::DeviceBuffer offsets_{device_.runtime};
  cuda::DeviceBuffer bases_{device_.runtime};
  cuda::DeviceBuffer totals_{device_.runtime};
  cuda::DeviceBuffer values_{device_.runtime};  // plane: packed values, or a dense gradient
};

Error not_on_device(const std::string& what) {
  return make_error(Errc::kUnsupported, "exact:" + what + " does not run on a device yet");
}

}  // namespace

Result<std::unique_ptr<Codec>> create_exact_on_device(const CodecSpec& spec, const Layout& layout) {
  Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  if (options->values == Values::kReproducible) return not_on_device("values=reproducible");
  if (options->mode != Mode::kAuto && options->mode != Mode::kPacked &&
      options->mode != Mode::kTwoLevel)
    return not_on_device("mode=" + std::string(mode_name(options->mode)));
  options->choice = Choice::kDevice;
  const auto device = cuda::Device::of(layout.execution.stream);
  ADDEND_TRY(device);
  const auto kernels = cuda::part<IndexKernels>();
  ADDEND_TRY(kernels);
  auto codec = std::make_unique<DeviceExactCodec>(layout, *options, *device, **kernels);
  ADDEND_TRY(codec->open());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::exact
