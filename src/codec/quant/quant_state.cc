// SPDX-License-Identifier: Apache-2.0
// What a QuantCodec saves over a restart: its step and its residual, of the whole bucket or of one
// segment. docs/formats/quant.md, "State".
#include <cstring>
#include <string>

#include "codec/fingerprint.h"
#include "codec/quant/quant.h"

namespace addend::quant {
namespace {

struct StateHeader {
  uint64_t fingerprint;
  uint64_t step;
};

struct SegmentHeader {
  uint64_t fingerprint;
  uint64_t worker;
  uint64_t step;
};

template <typename Header>
std::vector<uint8_t> write_state(const Header& header, const Residual& residual,
                                 const Residual::Range& range) {
  std::vector<uint8_t> state(sizeof(Header) + residual.state_bytes(range));
  std::memcpy(state.data(), &header, sizeof(Header));
  residual.save(range, state.data() + sizeof(Header));
  return state;
}

Error mismatch(const std::string& what) {
  return make_error(Errc::kMismatch, "the saved state is " + what);
}

std::string of_worker(uint64_t saved, uint64_t mine) {
  return "of worker " + std::to_string(saved) + ", this is worker " + std::to_string(mine);
}

}  // namespace

// Residuals belong to one worker.
uint64_t QuantCodec::state_fingerprint(uint32_t worker) const {
  return Fingerprint().add(base_fingerprint()).add(uint64_t{worker}).value();
}

// A residual is in units of the gradient, in coordinates that block and rotation give: world, and
// the tables that depend on it, bucket and scale may change under it.
uint64_t QuantCodec::segment_fingerprint(uint64_t segment) const {
  const bool whole = layout().segments.empty();
  const Segment at = whole ? Segment{layout().bucket, layout().count} : layout().segments[segment];
  Fingerprint print;
  print.add(whole ? "quant bucket" : "quant segment").add(layout().seed).add(at.id).add(at.count);
  print.add(options_.budget).add(options_.clipped);
  for (const uint64_t choice :
       {static_cast<uint64_t>(layout().dtype), uint64_t{options_.bits}, options_.block,
        uint64_t{options_.granularity}, static_cast<uint64_t>(options_.levels),
        static_cast<uint64_t>(options_.rotation), static_cast<uint64_t>(options_.rounding),
        static_cast<uint64_t>(options_.feedback), static_cast<uint64_t>(options_.carrier),
        static_cast<uint64_t>(options_.non_finite)}) {
    print.add(choice);
  }
  return print.value();
}

Residual::Range QuantCodec::residual_range(BlockRange blocks) const {
  if (blocks.count == 0) return {};
  const Block &first = blocks_[blocks.first], &last = blocks_[blocks.first + blocks.count - 1];
  return {first.place, last.place + last.size - first.place, blocks.first, blocks.count};
}

Result<std::vector<uint8_t>> QuantCodec::do_save_state() const {
  return write_state(StateHeader{state_fingerprint(layout().worker), step_}, residual_,
                     residual_.all());
}

// A state whose fingerprint is not this worker's may still be another's of the same plan.
Error QuantCodec::foreign_state(uint64_t fingerprint) const {
  for (uint32_t w = 0; w < layout().world; ++w) {
    if (fingerprint == state_fingerprint(w)) return mismatch(of_worker(w, layout().worker));
  }
  return mismatch("of another plan: spec, layout and seed must be the same");
}

Status QuantCodec::do_load_state(std::span<const uint8_t> state) {
  StateHeader header;
  if (state.size() != sizeof(header) + residual_.state_bytes(residual_.all()))
    return mismatch("not of a codec with this layout and feedback");
  std::memcpy(&header, state.data(), sizeof(header));
  if (header.fingerprint != state_fingerprint(layout().worker))
    return foreign_state(header.fingerprint);
  step_ = header.step;
  residual_.load(residual_.all(), state.data() + sizeof(header));
  return {};
}

// Without feedback a segment carries nothing from step to step: the step itself is the layout's.
Result<std::vector<uint8_t>> QuantCodec::do_save_segment(uint64_t segment) const {
  if (options_.feedback == Feedback::kNone) return std::vector<uint8_t>();
  return write_state(SegmentHeader{segment_fingerprint(segment), layout().worker, step_}, residual_,
                     residual_range(blocks_.segment(segment)));
}

Status QuantCodec::do_load_segment(uint64_t segment, std::span<const uint8_t> state) {
  if (options_.feedback == Feedback::kNone) {
    if (state.empty()) return {};
    return mismatch("of a codec with feedback, this one has none");
  }
  const Residual::Range range = residual_range(blocks_.segment(segment));
  SegmentHeader header;
  if (state.size() != sizeof(header) + residual_.state_bytes(range))
    return mismatch("not of a segment of this size, with this feedback");
  std::memcpy(&header, state.data(), sizeof(header));
  if (header.fingerprint != segment_fingerprint(segment))
    return mismatch(
        "of another segment or plan: id, count, type, seed and options must be the same");
  if (header.worker != layout().worker) return mismatch(of_worker(header.worker, layout().worker));
  if (header.step != step_) {
    return mismatch("of step " + std::to_string(header.step) + ", this codec's next is " +
                    std::to_string(step_));
  }
  residual_.load(range, state.data() + sizeof(header));
  return {};
}

}  // namespace addend::quant
