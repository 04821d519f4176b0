// SPDX-License-Identifier: Apache-2.0
// The quantised codec on a CUDA device: the plan, formats and results of quant.h, with kernels that
// write the same bytes (quant_kernels.h).
//
// Everything is enqueued on the layout's stream. next_round waits twice for a few bytes that
// kernels write to the host's memory: how many blocks travel, once norms are folded (lanes are
// being written meanwhile), and how many workers are in the sums.
//
// The residual is kept twice, before and after the step, and finish exchanges the two
// (docs/decisions/0079-residuals-on-a-device.md). With an index it lies over the positions, and
// finish writes what a step left behind where the union is.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "codec/index/device_union.h"
#include "codec/quant/plan.h"
#include "codec/quant/quant_kernels.h"
#include "cuda/memory.h"

namespace addend::quant {

Result<std::unique_ptr<Codec>> create_quant_on_device(const CodecSpec& spec, const Layout& layout);

class DeviceQuantCodec final : public QuantPlan {
 public:
  static Result<std::unique_ptr<Codec>> make(const Layout& layout, const Options& options);

  uint64_t memory_bytes() const override;

 private:
  DeviceQuantCodec(const Layout& layout, const Options& options, const cuda::Device& device,
                   const QuantKernels* kernels)
      : QuantPlan(layout, options), device_(device), kernels_(kernels) {}
  Status set_up();
  Status cut_blocks(const Layout& elements);
  Status reserve_planes();
  Status reserve_residuals(uint64_t elements);
  Status send_blocks();
  Status send_cells();

  Status do_begin(const void* gradient) override;
  Result<bool> do_round(Round& round) override;
  Status do_finish(void* gradient) override;

  Status fetch_residual(const Residual::Range& range, uint8_t* to) const override;
  Status put_residual(const Residual::Range& range, const uint8_t* from) override;
  Status multiply_residual(double factor) override;

  // One of the two residuals of feedback.
  struct Kept {
    explicit Kept(const cuda::RuntimeTable* runtime) : values(runtime), scales(runtime) {}
    DeviceResidual view() const { return {values.as<void>(), scales.as<float>()}; }
    cuda::DeviceBuffer values, scales;
  };
  Kept& owed() { return kept_[current_]; }
  const Kept& owed() const { return kept_[current_]; }

  // Of the only width of a plan's blocks.
  const Coding& coding() const { return codings_[0]; }
  bool indices() const { return options_.carrier == Carrier::kIndices; }
  Op op() const { return lane_op(coding().lane, options_); }
  DeviceCarrier sum_carrier() const;
  const void* sums() const { return (indices() ? sums_ : lanes_).as<void>(); }

  void* stream() const { return layout().execution.stream; }
  Status check(int code, const char* doing) const { return device_.check(code, doing); }
  // To the device from the host or back, done when it returns.
  Status copy(void* to, const void* from, uint64_t bytes) const;
  Status upload(cuda::DeviceBuffer& buffer, const void* from, uint64_t bytes);

  Status open_norms(Round& round);
  Result<bool> encode(Round& round);
  Status ask_count();
  Status take_count();
  Status decode(const DeviceStep& step, void* to);

  // The rounds and the end of a step with an index: device_quant_index.cc.
  Status set_up_index();
  Status open_index(Round& round);
  Result<bool> close_index(Round& round);
  Status take_union();
  Status finish_index(void* gradient);
  void settle() const;
  void add_plan(Fingerprint& print) const override;

  const cuda::Device device_;
  const QuantKernels* const kernels_;

  enum class Waiting : uint8_t { kNothing, kIndex, kNorms, kLast };
  Waiting waiting_ = Waiting::kNothing;
  const void* gradient_ = nullptr;
  DeviceStep args_;    // constant but for the step's fields
  uint64_t room_ = 0;  // blocks that there is memory for
  uint64_t live_ = 0;
  uint64_t samples_ = 0;  // of the step
  uint32_t current_ = 0;  // which of kept_ is owed

  // With an index: the union of the step, and whether the next form waits for a survey of it.
  std::optional<index::DeviceUnion> union_;
  mutable bool unsettled_ = false;
  mutable Status settling_;                          // why it failed: no step can begin
  cuda::DeviceBuffer values_{device_.runtime};       // float: of the union, with the residual
  cuda::DeviceBuffer elements_{device_.runtime};     // sums in the gradient's type
  cuda::DeviceBuffer owed_values_{device_.runtime};  // float: the residual of the union

  // What kernels know of blocks, side by side: each, sizes, numbers of those for warps and CTAs.
  static constexpr uint64_t kTableBytes = sizeof(DeviceBlock) + 2 * sizeof(uint32_t);
  cuda::PinnedBuffer tables_{device_.runtime};
  cuda::DeviceBuffer tables_on_{device_.runtime}, cells_{device_.runtime};
  cuda::DeviceBuffer norms_{device_.runtime}, survey_{device_.runtime}, parts_{device_.runtime},
      first_lanes_{device_.runtime}, sampled_{device_.runtime}, thresholds_{device_.runtime};
  cuda::DeviceBuffer lanes_{device_.runtime}, sums_{device_.runtime},
      contributors_on_{device_.runtime};
  std::array<Kept, 2> kept_{Kept(device_.runtime), Kept(device_.runtime)};
  cuda::PinnedBuffer sample_memory_{device_.runtime};
  cuda::Mailbox mail_{device_};
};

}  // namespace addend::quant
