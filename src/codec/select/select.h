// SPDX-License-Identifier: Apache-2.0
// Codecs that let some elements travel and keep the others for later steps: topk, threshold, dgc,
// redsync, random, leader. What is selected is carried by another codec: as the non-zeros of a
// gradient by exact, or, where all workers have the same positions, values side by side by dense.
// docs/formats/select.md.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "addend/codec.h"
#include "base/buffer.h"
#include "codec/readable_residual.h"
#include "codec/select/chosen.h"
#include "codec/select/cut.h"
#include "codec/select/plan.h"

namespace addend::select {

Result<std::unique_ptr<Codec>> create_select(const CodecSpec& spec, const Layout& layout);

/// What all selectors share: elements with what is owed to them before a selection, and what is
/// owed after it.
class SelectCodec : public SelectPlan, public ReadableResidual {
 public:
  SelectCodec(const Layout& layout, const Options& options);

  uint64_t memory_bytes() const override;
  Status add_residual(float* to) const final {
    residual_.add_to(0, 0, layout().count, to);
    return {};
  }

 protected:
  /// A segment in this layout.
  struct Part {
    uint64_t id = 0, begin = 0, end = 0;
    bool finite = true;  ///< in this step
    /// Where the last step cut, bits of a magnitude, and by how much less the next one may: what is
    /// larger is looked at, so that one pass does. No result depends on it. 0: nothing is known.
    uint32_t cut = 0, margin = 0;
    int64_t rise = 0;  ///< of the cut, over the one before
    uint64_t count() const { return end - begin; }
  };

  Status set_up();

  uint64_t words() const;
  uint64_t kept_of(const Part& part) const { return SelectPlan::kept_of(part.count()); }
  /// A number for this step and part, the same on all workers.
  uint64_t draw_of(const Part& part) const { return draws_of(part.id).add(step_).value(); }

  /// sums_ = gradient + residual of a part (of dgc: the velocity that this makes, too), counted if
  /// there is a histogram to count in.
  void add_up(Part& part, Histogram* histogram);
  Field field_of(const Part& part);
  /// Moves what the bitmap marks of a part from sums_ to chosen_.
  void extract(Part& part);
  /// The same in the pass that adds up.
  void add_up_and_extract(Part& part);
  /// All of that for the largest elements or those above the threshold: adds up, marks and
  /// extracts in one pass, if the last step's cut tells where to look. If not, false, and nothing
  /// of the part is marked.
  bool take_above_last_cut(Part& part);
  /// Everything is extracted: elements become those of the layout's type, what that loses is left
  /// in sums_, and the report has energies. `zeros`: elements that round to zero travel, too.
  void round_chosen(bool zeros);

  /// The step succeeded: what was not sent is owed from now on.
  void settle();

  std::vector<Part> parts_;
  const void* gradient_ = nullptr;
  bool selected_ = false;
  Buffer sums_;  // float: gradient and residual, then without what travels: owed, once it is done
  Chosen chosen_;

 private:
  Status save_learnt(uint64_t segment, uint8_t* to) const final;
  Status load_learnt(uint64_t segment, const uint8_t* from) final;
  Status multiply_residual(double factor) final;

  Status do_begin(const void* gradient) final;

  Addends addends(uint64_t begin = 0);
  bool streams() const;
  void count_part(const Part& part, Histogram& histogram);
  void accelerate(Part& part);
  float clipping(const Part& part) const;
  void learn_cut(Part& part, std::span<const Stretch> kept, uint64_t candidates);
  void round_chunk(uint64_t chunk, bool zeros);
  void report_energy();

  std::vector<Histogram> by_thread_;
  Scratch scratch_;
  Buffer velocity_, next_velocity_;  // float: of dgc
};

}  // namespace addend::select
