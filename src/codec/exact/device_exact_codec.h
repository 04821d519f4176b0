// SPDX-License-Identifier: Apache-2.0
// The exact codec on a device. The steps are ExactCodec's, the plan is the same object, and planes
// have the same bytes. What differs is when the host knows things: the size of the union by a
// letter, for which next_round waits; whether sums are finite, where that matters to the next plan,
// when that plan is asked for.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "codec/exact/device_own.h"
#include "codec/exact/device_reproducible.h"
#include "codec/exact/device_sketch.h"
#include "codec/exact/plan.h"
#include "codec/index/device_bloom.h"
#include "codec/index/device_two_level.h"
#include "codec/index/index_kernels.h"
#include "codec/step.h"
#include "cuda/memory.h"

namespace addend::exact {

class DeviceExactCodec final : public SteppedCodec {
 public:
  DeviceExactCodec(const Layout& layout, const Options& options, const cuda::Device& device,
                   const index::IndexKernels& kernels);
  Status open();

  uint64_t fingerprint() const override { return settled().fingerprint(); }
  std::string_view next_mode() const override { return mode_name(settled().mode()); }
  uint64_t memory_bytes() const override;

 private:
  enum class Waiting : uint8_t {
    kNothing,
    kRanges,
    kIndex,
    kBlocks,
    kElements,
    kFilter,
    kFound,
    kSketch,
    kSizes,
    kMessages,
    kLast
  };

  Status do_begin(const void* gradient) override;
  Result<bool> do_round(Round& round) override;
  Status do_finish(void* gradient) override;
  void do_skip_step() override { plan_.count_dense_step(); }

  Mode mode() const { return plan_.mode(); }
  bool reproducible() const { return plan_.options().values == Values::kReproducible; }
  uint32_t width() const { return dtype_bytes(layout().dtype); }

  // One function per round: each fills the planes.
  Status open_step(Round& round);
  Status open_dense(Round& round);
  Status open_blocks(Round& round);
  Status open_index(Round& round);
  Status open_filter(Round& round);
  Status open_sketch(Round& round);
  Status open_sizes(Round& round);

  // One per sum that came back; each goes on to the next round (true) or says that there is none
  // (false).
  Result<bool> close_index(Round& round);
  Result<bool> close_blocks(Round& round);
  Result<bool> close_elements(Round& round);
  Result<bool> close_filter(Round& round);
  Result<bool> close_found(Round& round);
  Result<bool> close_sketch(Round& round);
  Result<bool> close_sizes(Round& round);
  Result<bool> close_messages();

  Status reserve_bitmaps();
  Status reserve_kept(uint64_t bytes);
  Status scan();
  Status count_union(uint64_t few);
  Status pack_ahead();
  Result<const uint64_t*> take_count();
  index::CountedUnion counted_union() const;
  Status pack_values(uint64_t room, void* values);
  index::PackedValues packed_values();
  Result<bool> open_block_values(Round& round);
  Result<bool> open_values(Round& round);
  Result<bool> open_dense_values(Round& round);

  // The largest union that is packed.
  uint64_t most_packed() const;
  bool travels_as_it_is() const;
  // What values are multiplied by before they travel.
  float factor() const { return reproducible() ? 1.0f : scale(); }

  Quanta quanta() const;
  Status assemble_sketch();
  Status count_sums();
  Status scatter(void* gradient);
  Status ask(const void* sums, uint64_t count);
  Status survey_blocks();
  const Plan& settled() const;
  Status settle() const;
  void learn() const;
  void learn_surveyed(std::span<const uint64_t> answer) const;

  mutable Plan plan_;  // settled() completes it
  mutable bool unsettled_ = false;
  bool looks_ = false, surveys_ = false;  // what is asked then
  mutable Status settling_;               // why that failed: the next step cannot begin
  const cuda::Device device_;
  const index::IndexKernels& kernels_;

  // The step.
  const void* gradient_ = nullptr;
  Waiting waiting_ = Waiting::kNothing;
  uint64_t union_ = 0;     // non-zeros of the union
  uint64_t selected_ = 0;  // positions that values travel for: these, and what a filter adds
  uint64_t packed_ = 0;    // room that values were packed into before their number was known
  bool false_positions_ = false;
  bool peeled_ = false;
  uint64_t fix_up_count_ = 0;
  uint32_t top_ = 0;  // folded, of a sketch
  bool negative_zeros_ = false;
  uint64_t nonzeros_ = 0, index_bytes_ = 0;  // of this worker's message
  uint64_t own_size_ = 0;                    // its lanes
  std::vector<uint64_t> bounds_;
  const void* dense_plane_ = nullptr;
  bool cleared_ = false;  // totals_, by the count of the last step

  index::DeviceTwoLevel two_level_;
  index::DeviceBloom bloom_;
  DeviceReproducible reproducible_;
  DeviceSketch sketch_;
  DeviceOwn own_;
  cuda::Mailbox counted_, looked_;
  cuda::DeviceBuffer local_;   // bitmap of this worker
  cuda::DeviceBuffer bitmap_;  // plane: bitmap, then the union
  cuda::DeviceBuffer kept_;
  cuda::DeviceBuffer offsets_;
  cuda::DeviceBuffer bases_;
  cuda::DeviceBuffer totals_;
  cuda::DeviceBuffer sizes_;     // plane: lanes of messages
  cuda::DeviceBuffer messages_;  // plane: messages
  cuda::PinnedBuffer host_sizes_;
  cuda::DeviceBuffer values_;  // plane: packed values, or a dense gradient; or decoded ones
};

}  // namespace addend::exact
