// SPDX-License-Identifier: Apache-2.0
#include "codec/feedback.h"

#include <cstring>
#include <string>

namespace addend {
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

Error mismatch(const std::string& what) {
  return make_error(Errc::kMismatch, "the saved state is " + what);
}

std::string of_worker(uint64_t saved, uint64_t mine) {
  return "of worker " + std::to_string(saved) + ", this is worker " + std::to_string(mine);
}

}  // namespace

template <typename Header>
Result<std::vector<uint8_t>> FeedbackCodec::write_state(const Header& header,
                                                        const Residual::Range& range) const {
  std::vector<uint8_t> state(sizeof(Header) + residual_.state_bytes(range));
  std::memcpy(state.data(), &header, sizeof(Header));
  ADDEND_TRY(fetch_residual(range, state.data() + sizeof(Header)));
  return state;
}

uint64_t FeedbackCodec::fingerprint() const {
  Fingerprint print;
  print.add(base_fingerprint()).add(step_);
  add_plan(print);
  return print.value();
}

Segment FeedbackCodec::segment_at(uint64_t segment) const {
  if (layout().segments.empty()) return {layout().bucket, layout().count};
  return layout().segments[segment];
}

// Residuals belong to one worker.
uint64_t FeedbackCodec::state_fingerprint(uint32_t worker) const {
  return Fingerprint().add(base_fingerprint()).add(uint64_t{worker}).value();
}

Result<std::vector<uint8_t>> FeedbackCodec::do_save_state() const {
  return write_state(StateHeader{state_fingerprint(layout().worker), step_}, residual_.all());
}

// A state whose fingerprint is not this worker's may still be another's of the same plan.
Error FeedbackCodec::foreign_state(uint64_t fingerprint) const {
  for (uint32_t w = 0; w < layout().world; ++w) {
    if (fingerprint == state_fingerprint(w)) return mismatch(of_worker(w, layout().worker));
  }
  return mismatch("of another plan: spec, layout and seed must be the same");
}

Status FeedbackCodec::do_load_state(std::span<const uint8_t> state) {
  StateHeader header;
  if (state.size() != sizeof(header) + residual_.state_bytes(residual_.all()))
    return mismatch("not of a codec with this layout and feedback");
  std::memcpy(&header, state.data(), sizeof(header));
  if (header.fingerprint != state_fingerprint(layout().worker))
    return foreign_state(header.fingerprint);
  ADDEND_TRY(put_residual(residual_.all(), state.data() + sizeof(header)));
  step_ = header.step;
  return {};
}

// Without feedback a segment carries nothing from step to step: the step itself is the layout's.
Result<std::vector<uint8_t>> FeedbackCodec::do_save_segment(uint64_t segment) const {
  if (!residual_.any()) return std::vector<uint8_t>();
  return write_state(SegmentHeader{segment_fingerprint(segment), layout().worker, step_},
                     segment_range(segment));
}

Status FeedbackCodec::do_load_segment(uint64_t segment, std::span<const uint8_t> state) {
  if (!residual_.any()) {
    if (state.empty()) return {};
    return mismatch("of a codec with feedback, this one has none");
  }
  const Residual::Range range = segment_range(segment);
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
  return put_residual(range, state.data() + sizeof(header));
}

}  // namespace addend
