// SPDX-License-Identifier: Apache-2.0
// The lossless codec: an index that ORs, values that sum. One class runs all modes, because they
// differ only in how the index travels and share what happens to values once the union is known.
#pragma once

#include <memory>
#include <vector>

#include "addend/codec.h"
#include "base/buffer.h"
#include "codec/exact/own.h"
#include "codec/exact/plan.h"
#include "codec/exact/reproducible.h"
#include "codec/index/union_index.h"
#include "codec/step.h"

namespace addend::exact {

Result<std::unique_ptr<Codec>> create_exact(const CodecSpec& spec, const Layout& layout);

class ExactCodec final : public SteppedCodec {
 public:
  ExactCodec(const Layout& layout, const Options& options);

  /// begin, for a gradient whose non-zeros the caller has found; they are the caller's until
  /// finish.
  Status begin_sparse(const index::Sparse& gradient);

  uint64_t fingerprint() const override { return plan_.fingerprint(); }
  std::string_view next_mode() const override { return mode_name(mode()); }
  uint64_t memory_bytes() const override;

 private:
  // Which round's sum do_round waits for. The value stage follows every index.
  enum class Waiting : uint8_t {
    kNothing,
    kRanges,
    kBlocks,
    kElements,
    kIndex,
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
  void do_skip_step() override;

  Mode mode() const { return plan_.mode(); }
  bool reproducible() const { return plan_.options().values == Values::kReproducible; }
  // The gradient is scanned for live blocks, not for non-zeros. Reproducible values need those for
  // their ranges.
  bool by_blocks() const { return mode() == Mode::kTwoLevel && !reproducible(); }
  uint64_t words() const { return words_for(layout().count); }
  uint32_t width() const { return dtype_bytes(layout().dtype); }
  uint64_t* bitmap() { return index_.bitmap(); }

  Status scan_gradient();
  Status spell_out();
  Status measure();
  NonZeros nonzeros() const;

  // One function per round: each fills the planes.
  Status open_index(Round& round);
  Status open_blocks(Round& round);
  Status open_filter(Round& round);
  Status open_ranges(Round& round);
  Status open_sketch(Round& round);
  Status open_dense(Round& round);

  // One per sum that came back; each goes on to the next round (true) or says that there is none
  // (false).
  Result<bool> close_blocks(Round& round);
  Result<bool> close_elements(Round& round);
  Result<bool> close_index(Round& round);
  Result<bool> close_filter(Round& round);
  Result<bool> close_found(Round& round);
  Result<bool> close_sketch(Round& round);
  Result<bool> close_sizes(Round& round);
  Result<bool> close_messages();

  void add_own_plane(Round& round);
  Status open_sizes(Round& round);
  void add_messages(void* gradient) const;
  Status accept_union();
  Result<bool> open_values(Round& round);
  Status local_quanta();
  void stuck_quanta(uint64_t* lanes) const;
  Status select_fix_up();
  Result<bool> open_fix_up(Round& round);

  void count_sums();
  void observe(const void* sum);
  void survey_blocks();
  Status assemble_sketch();
  void assemble_mixed();
  struct Quantum;
  Quantum quantum_at(uint64_t position) const;

  Plan plan_;

  // The step.
  const void* gradient_ = nullptr;  // null while only its non-zeros are known
  index::Sparse given_;
  Waiting waiting_ = Waiting::kNothing;
  uint64_t union_ = 0;     // non-zeros of the union
  uint64_t selected_ = 0;  // positions that values travel for: these, and what a filter adds
  bool false_positions_ = false;
  bool peeled_ = false;
  const void* dense_plane_ = nullptr;  // values travel as they are, and lie here
  uint64_t fix_up_count_ = 0;
  uint32_t top_lane_ = 0;
  uint32_t own_lane_ = 0;
  uint64_t own_size_ = 0, most_own_ = 0;  // lanes of messages: this worker's, the longest
  std::vector<uint64_t> bounds_;
  std::vector<OwnMessage> messages_;

  index::UnionIndex index_;
  Buffer spelt_out_;  // elements of a gradient that was given by its non-zeros
  Buffer values_;     // plane: packed values; or the decoded packed values
  Buffer ranges_;     // plane: block ranges
  Buffer cells_;      // plane: sketch cells
  Buffer escape_;     // plane: words that escape
  Buffer local_escape_;
  Buffer sizes_;           // plane: lanes of messages
  Buffer messages_plane_;  // plane: messages
  Buffer quanta_;          // integers of this worker's keys; in the fix-up, the plane of stuck keys
  Buffer keys_;            // bitmap: the union's keys that are in the sketch
  Buffer fix_up_;          // bitmap: the union's keys that escape
  Buffer fix_values_;      // plane: their values as floats; decoded, in both value modes
  ReproducibleValues reproducible_;
  Sketch sketch_;
};

}  // namespace addend::exact
