// SPDX-License-Identifier: Apache-2.0
// The codecs that select, on a CUDA device: plan, rounds and results of select.h, with kernels that
// come to the same selection (select_kernels.h).
//
// The residual is kept twice: a step writes what is owed after it to the other one, and finish
// exchanges the two (docs/decisions/0079-residuals-on-a-device.md).
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "codec/readable_residual.h"
#include "codec/select/plan.h"
#include "codec/select/select_kernels.h"
#include "cuda/memory.h"

namespace addend::select {

Result<std::unique_ptr<Codec>> create_select_on_device(const CodecSpec& spec, const Layout& layout);

/// By which all workers send the same positions: device_agreed.cc.
Result<std::unique_ptr<Codec>> create_agreed_on_device(const Layout& layout, const Options& options,
                                                       const cuda::Device& device,
                                                       const SelectKernels& kernels);

/// What all selectors share.
class DeviceSelect : public SelectPlan, public ReadableResidual {
 public:
  DeviceSelect(const Layout& layout, const Options& options, const cuda::Device& device,
               const SelectKernels& kernels);

  uint64_t memory_bytes() const override;
  Status add_residual(float* to) const final;

 protected:
  Status set_up();
  /// Elements that travel in each step, by all parts.
  uint64_t total() const { return total_; }

  /// args_ is the step's, what is found is cleared, and gradient and residual are added up.
  Status add_up(bool chooses);
  /// Asks for the step's letter, and takes it into the report.
  Status tell();
  Status take_letter();
  /// The step succeeded: what was not sent is owed from now on.
  void settle();

  void* stream() const { return layout().execution.stream; }
  Status check(int code, const char* doing) const { return device_.check(code, doing); }
  Status clear(const cuda::DeviceBuffer& buffer, uint64_t bytes) const;

  const cuda::Device device_;
  const SelectKernels& kernels_;
  SelectStep args_{};
  const void* gradient_ = nullptr;
  bool selected_ = false;

 private:
  Status do_begin(const void* gradient) final;
  Status fetch_residual(const Residual::Range& range, uint8_t* to) const final;
  Status put_residual(const Residual::Range& range, const uint8_t* from) final;
  Status multiply_residual(double factor) final;
  Status save_learnt(uint64_t segment, uint8_t* to) const final;
  Status load_learnt(uint64_t segment, const uint8_t* from) final;

  void cut_pieces();
  void cut_samples();
  Status set_up_velocity();
  Status follow_warmup();
  Status copy(void* to, const void* from, uint64_t bytes) const;
  Status upload(cuda::DeviceBuffer& buffer, const void* from, uint64_t bytes) const;
  const cuda::DeviceBuffer& owed() const { return kept_[current_]; }

  std::vector<DevicePart> parts_;
  std::vector<DevicePiece> pieces_;
  uint64_t total_ = 0;
  uint32_t current_ = 0;  // which of kept_ is owed
  std::array<cuda::DeviceBuffer, 2> kept_{cuda::DeviceBuffer(device_.runtime),
                                          cuda::DeviceBuffer(device_.runtime)};
  cuda::DeviceBuffer parts_on_{device_.runtime}, pieces_on_{device_.runtime};
  cuda::DeviceBuffer equals_{device_.runtime}, sums_{device_.runtime}, cuts_{device_.runtime},
      totals_{device_.runtime};
  cuda::Mailbox mail_{device_};

  // Of dgc: velocities, exchanged as the residuals are, and the sample.
  std::array<cuda::DeviceBuffer, 2> velocities_{cuda::DeviceBuffer(device_.runtime),
                                                cuda::DeviceBuffer(device_.runtime)};
  std::vector<DevicePiece> sample_pieces_;
  cuda::DeviceBuffer samples_{device_.runtime}, sample_pieces_on_{device_.runtime};
};

}  // namespace addend::select
