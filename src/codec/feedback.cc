// SPDX-License-Identifier: Apache-2.0
#include "codec/feedback.h"

#include <algorithm>
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

Residual::Range FeedbackCodec::positions_of(uint64_t segment) const {
  uint64_t begin = 0;
  for (uint64_t s = 0; s < segment; ++s)
    begin += layout().segments[s].count;
  return {begin, segment_at(segment).count, 0, 0};
}

// Residuals belong to one worker.
uint64_t FeedbackCodec::state_fingerprint(uint32_t worker) const {
  return Fingerprint().add(base_fingerprint()).add(uint64_t{worker}).value();
}

uint64_t FeedbackCodec::bytes_of(const Part& part) const {
  uint64_t bytes = residual_.state_bytes(part.range);
  for (uint64_t s = part.first; s < part.last; ++s)
    bytes += learnt_bytes(s);
  return bytes;
}

template <typename Header>
Result<std::vector<uint8_t>> FeedbackCodec::write_state(const Header& header,
                                                        const Part& part) const {
  std::vector<uint8_t> state(sizeof(Header) + bytes_of(part));
  std::memcpy(state.data(), &header, sizeof(Header));
  uint8_t* to = state.data() + sizeof(Header);
  for (uint64_t s = part.first; s < part.last; to += learnt_bytes(s++))
    ADDEND_TRY(save_learnt(s, to));
  ADDEND_TRY(fetch_residual(part.range, to));
  return state;
}

Status FeedbackCodec::read_state(const Part& part, const uint8_t* from) {
  ADDEND_TRY(put_residual(part.range, from + bytes_of(part) - residual_.state_bytes(part.range)));
  for (uint64_t s = part.first; s < part.last; from += learnt_bytes(s++))
    ADDEND_TRY(load_learnt(s, from));
  return {};
}

FeedbackCodec::Part FeedbackCodec::all() const {
  return {0, std::max<uint64_t>(layout().segments.size(), 1), residual_.all()};
}

Result<std::vector<uint8_t>> FeedbackCodec::do_save_state() const {
  return write_state(StateHeader{state_fingerprint(layout().worker), step_}, all());
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
  if (state.size() != sizeof(header) + bytes_of(all()))
    return mismatch("not of a codec with this layout and feedback");
  std::memcpy(&header, state.data(), sizeof(header));
  if (header.fingerprint != state_fingerprint(layout().worker))
    return foreign_state(header.fingerprint);
  ADDEND_TRY(read_state(all(), state.data() + sizeof(header)));
  step_ = header.step;
  return {};
}

// A segment that keeps nothing needs no header: the step itself is the layout's.
Result<std::vector<uint8_t>> FeedbackCodec::do_save_segment(uint64_t segment) const {
  if (!keeps(segment)) return std::vector<uint8_t>();
  return write_state(SegmentHeader{segment_fingerprint(segment), layout().worker, step_},
                     {segment, segment + 1, segment_range(segment)});
}

Status FeedbackCodec::do_load_segment(uint64_t segment, std::span<const uint8_t> state) {
  if (!keeps(segment)) {
    if (state.empty()) return {};
    return mismatch("of a codec with feedback, this one has none");
  }
  const Part part{segment, segment + 1, segment_range(segment)};
  SegmentHeader header;
  if (state.size() != sizeof(header) + bytes_of(part))
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
  return read_state(part, state.data() + sizeof(header));
}

}  // namespace addend
