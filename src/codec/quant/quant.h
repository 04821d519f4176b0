// SPDX-License-Identifier: Apache-2.0
// The quantised codec: rotate blocks, agree on one scale a block, round to integer levels without
// bias, add integers.
//
//   round 0  max of block norms               one u32 a block
//   round 1  sums of levels, or table sums    one lane an element, blocks of norm 0 left out
//            contributors                     one lane: how many workers are in the sums
//
// With an index, its rounds come first, and the elements are those of the union.
//
// After the scheme of Li et al., THC, arXiv 2302.08545; docs/algorithms/quant.md says where it
// differs and why.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "addend/codec.h"
#include "base/bits.h"
#include "base/buffer.h"
#include "base/chunks.h"
#include "codec/index/kernels.h"
#include "codec/index/union_index.h"
#include "codec/quant/plan.h"
#include "codec/readable_residual.h"

namespace addend::quant {

Result<std::unique_ptr<Codec>> create_quant(const CodecSpec& spec, const Layout& layout);

class QuantCodec final : public QuantPlan, public ReadableResidual {
 public:
  static Result<std::unique_ptr<QuantCodec>> make(const Layout& layout, const Options& options);

  uint64_t memory_bytes() const override;
  Status add_residual(float* to) const override;

  /// For a codec whose values these are, between steps: what workers must share but for the step;
  /// the number of the next step; and what this worker's levels lost in the last one, in the
  /// gradient's coordinates, which is then owed no more. REQUIRES: begin_at, nothing is owed;
  /// take_residual, feedback=float and no index.
  uint64_t plan() const { return base_fingerprint(); }
  void begin_at(uint64_t step) { step_ = step; }
  Status take_residual(float* to);

 private:
  // A block's part in this step, known after round 0.
  struct Part {
    float norm = 0;       // shared; 0: silent
    bool broken = false;  // some worker has a NaN or Inf in it
    uint8_t coding = 0;
    bool sampled = false;
    uint64_t lane = 0;             // first lane in the plane of its coding's lane type
    double energy = 0, error = 0;  // of its sample, if it has one
  };
  // What one thread needs to work on a block.
  struct Scratch {
    Buffer signs;    // bitmap of one block
    Buffer rotated;  // float, one block
    Buffer lost;     // float, one block
    Buffer levels;   // u8, one block
    Buffer nibbles;  // with `down`: indices of one block, two a byte
  };
  // Lanes of one type, in block order.
  struct LanePlane {
    uint64_t lanes = 0;
    Buffer data;  // levels, or packed indices
    Buffer sums;  // of indices
  };

  QuantCodec(const Layout& layout, const Options& options) : QuantPlan(layout, options) {}
  Status set_up();

  Status do_begin(const void* gradient) override;
  Result<bool> do_round(Round& round) override;
  Status do_finish(void* gradient) override;

  DType source_type() const { return indexed() ? DType::kF32 : layout().dtype; }
  void add_plan(Fingerprint& print) const override;

  // The rounds and the end of a step with an index: quant_index.cc.
  Status open_index(Round& round);
  Result<bool> close_index(Round& round);
  Status take_union();
  void keep_by_position(Scratch& mine, uint64_t b);
  void finish_index(void* gradient);

  Status cut_blocks(const Layout& elements);
  Status reserve(Scratch& one) const;
  Status reserve_scratch();
  template <typename Body>
  void for_each_block(const Body& body);
  const uint64_t* signs(Scratch& mine, const Block& block, uint64_t epoch) const;
  void rotate_block(Scratch& mine, uint64_t b, float prescale) const;
  void load_rotated(Scratch& mine, uint64_t b, float prescale) const;
  uint32_t norm_lane(Scratch& mine, uint64_t b);
  double slow_norm(const float* x, uint64_t n) const;

  void open_norms(Round& round);
  Status read_norms();
  Status note_broken();
  void place_all_lanes();
  bool knows_norms() const;
  Status open_ahead(Round& round);
  void keep_norms();
  void place_lanes(const BlockRange& range);
  void choose_widths();
  Status encode(Round& round);
  void choose_samples();
  bool is_broken_here(uint64_t b) const;
  Quantiser quantiser(uint64_t b, const Part& part, float norm) const;
  const float* elements_after(uint64_t b) const;
  bool has_like_after(uint64_t b) const;
  void encode_block(Scratch& mine, uint64_t b, Carrier as, uint8_t* out);
  void draft_residual(Scratch& mine, uint64_t b, Carrier as, const uint8_t* coded);
  // Whether what blocks become is not read soon; the union's values are scattered at once.
  bool streams() const { return !indexed() && layout().count * 4 >= index::kStreamBytes; }
  void fill_lanes(Scratch& mine, uint64_t b);
  void fill_narrow(Scratch& mine, uint64_t b, uint8_t* out);
  void fill_gaps(LanePlane& plane);
  Status check_narrow() const;
  void dequantise_block(Scratch& mine, uint64_t b, float factor, float offset) const;
  void requantise(Scratch& mine, const Part& part, const Quantiser& q, const float* x,
                  uint64_t n) const;
  void sample(Scratch& mine, uint64_t b);
  void decode_block(Scratch& mine, uint64_t b, double contributors, void* target) const;
  void keep_residual(Scratch& mine, uint64_t b);
  void take_draft();
  void turn_residual();
  void unrotate_residual(Scratch& mine, uint64_t b) const;

  // The step.
  enum class Waiting : uint8_t { kNothing, kIndex, kElements, kNorms, kLast };
  const void* gradient_ = nullptr;
  const void* source_ = nullptr;  // what blocks are cut from: the gradient, or the union's values
  Waiting waiting_ = Waiting::kNothing;
  bool ahead_ = false;  // this step's scales are the last one's norms
  uint64_t live_ = 0;   // blocks
  uint32_t contributors_ = 0;
  std::vector<Part> parts_;
  std::array<LanePlane, 3> planes_;  // by Lane

  // With an index: the union of the step.
  index::UnionIndex index_;
  Buffer elements_;  // of the union, in the gradient's type
  Buffer values_;    // the same as floats, with the residual; then the sums
  Buffer owed_;      // float: the residual of the union

  Thresholds thresholds_;
  Buffer norms_;                  // plane: u32 per block
  std::vector<Scratch> scratch_;  // of each thread
};

// Blocks that a thread takes at once have about so many elements.
inline constexpr uint64_t kLoopElements = uint64_t{1} << 15;

/// Calls body(b, scratch) for every block, by all threads there are. REQUIRES: reserve_scratch.
template <typename Body>
void QuantCodec::for_each_block(const Body& body) {
  const uint64_t blocks = blocks_.size();
  const uint64_t at_once = std::max<uint64_t>(1, kLoopElements / std::max(1u, blocks_.largest()));
  for_each_chunk(ceil_div(blocks, at_once), [&](uint64_t chunk, uint32_t thread) {
    const uint64_t end = std::min(blocks, (chunk + 1) * at_once);
    for (uint64_t b = chunk * at_once; b < end; ++b)
      body(b, scratch_[thread]);
    if (streams()) flush();
  });
}

}  // namespace addend::quant
