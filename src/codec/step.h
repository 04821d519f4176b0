// SPDX-License-Identifier: Apache-2.0
// The part of the contract that every codec shares: calls come in order, rounds are counted into
// the report, and floats are computed alike whatever the caller's thread is set to.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "addend/codec.h"
#include "base/float_environment.h"

namespace addend {

/// Base of the codecs. A codec overrides the three do_ functions; this class checks the order of
/// calls and keeps the report. `Contract` is Codec, or an interface that adds to it.
template <typename Contract>
class Stepped : public Contract {
 public:
  explicit Stepped(const Layout& layout) : layout_(layout) {}

  Status begin(const void* gradient) final { return start("begin", gradient, nullptr); }
  Status begin_in_place(void* gradient) final {
    return start("begin_in_place", gradient, gradient);
  }

  Result<bool> next_round(Round& round) final {
    if (state_ != State::kRounds) return out_of_order("next_round");
    const FloatEnvironment ours;
    round.clear();
    Result<bool> more = do_round(round);
    if (!more) {
      cancel();
      return more;
    }
    if (!*more) {
      state_ = State::kDecode;
      return false;
    }
    round.execution = layout_.execution;
    const uint64_t bytes = own_bytes(round);
    draft_.round_bytes[draft_.rounds++] = bytes;
    draft_.wire_bytes += bytes;
    return true;
  }

  Status finish(void* gradient) final {
    if (state_ != State::kDecode) return out_of_order("finish");
    if (gradient == nullptr && layout_.count > 0) {
      return make_error(Errc::kInvalidArgument, "finish: the gradient is null");
    }
    const FloatEnvironment ours;
    Status status = do_finish(gradient);
    state_ = State::kIdle;
    if (status) report_ = draft_;
    return status;
  }

  void cancel() final { state_ = State::kIdle; }

  Status skip_step() final {
    if (state_ != State::kIdle) return out_of_order("skip_step");
    if (this->next_mode() != "dense") {
      return make_error(Errc::kInvalidArgument, "skip_step: the next step is " +
                                                    std::string(this->next_mode()) + ", not dense");
    }
    do_skip_step();
    return {};
  }

  Status set_missing(uint64_t workers) final {
    if (state_ == State::kIdle) return out_of_order("set_missing");
    if (workers == 0) return {};
    const auto missing = static_cast<uint32_t>(std::popcount(workers));
    if (missing >= layout_.world || std::cmp_greater(std::bit_width(workers), layout_.world)) {
      return make_error(Errc::kInvalidArgument, "set_missing: not some of this layout's workers");
    }
    ADDEND_TRY(do_set_missing(workers));
    draft_.contributors = layout_.world - missing;
    draft_.missing = workers;
    return {};
  }
  Result<std::vector<uint8_t>> save_state() const final {
    if (state_ != State::kIdle) return out_of_order("save_state");
    return do_save_state();
  }
  Status load_state(std::span<const uint8_t> state) final {
    if (state_ != State::kIdle) return out_of_order("load_state");
    return do_load_state(state);
  }

  Result<std::vector<uint8_t>> save_segment(uint64_t segment) const final {
    ADDEND_TRY(check_segment("save_segment", segment));
    return do_save_segment(segment);
  }
  Status load_segment(uint64_t segment, std::span<const uint8_t> state) final {
    ADDEND_TRY(check_segment("load_segment", segment));
    return do_load_segment(segment, state);
  }
  Status scale_residual(double factor) final {
    if (state_ != State::kIdle) return out_of_order("scale_residual");
    if (!(factor > 0) || !std::isfinite(factor)) {
      return make_error(Errc::kInvalidArgument,
                        "scale_residual: the factor must be finite and above 0");
    }
    const FloatEnvironment ours;
    return do_scale_residual(factor);
  }

  const Report& report() const final { return report_; }
  const Layout& layout() const final { return layout_; }

 protected:
  virtual Status do_begin(const void* gradient) = 0;
  virtual Result<bool> do_round(Round& round) = 0;
  /// Must leave the gradient alone when it fails, and may change state that later plans depend on
  /// only when it succeeds.
  virtual Status do_finish(void* gradient) = 0;

  /// Of codecs whose plans may be dense.
  virtual void do_skip_step() {}

  virtual Status do_set_missing(uint64_t workers) {
    return make_error(
        Errc::kUnsupported,
        "worker " + std::to_string(std::countr_zero(workers)) +
            " is missing, and this codec's sum is only right with every worker in it");
  }
  virtual Result<std::vector<uint8_t>> do_save_state() const { return std::vector<uint8_t>(); }
  virtual Status do_load_state(std::span<const uint8_t> state) {
    if (state.empty()) return {};
    return make_error(Errc::kMismatch, "this codec keeps no state");
  }
  virtual Result<std::vector<uint8_t>> do_save_segment(uint64_t) const { return do_save_state(); }
  virtual Status do_load_segment(uint64_t, std::span<const uint8_t> state) {
    return do_load_state(state);
  }
  virtual Status do_scale_residual(double) { return {}; }

  /// The report of the step in progress.
  Report& draft() { return draft_; }
  /// The gradient of the step in progress if planes may lie in it, else null.
  void* lent() const { return lent_; }
  /// What values or sums are multiplied by.
  float scale() const { return static_cast<float>(layout_.scale); }

 private:
  enum class State : uint8_t { kIdle, kRounds, kDecode };

  Status start(const char* call, const void* gradient, void* lent) {
    if (state_ != State::kIdle) return out_of_order(call);
    if (gradient == nullptr && layout_.count > 0) {
      return make_error(Errc::kInvalidArgument, std::string(call) + ": the gradient is null");
    }
    const FloatEnvironment ours;
    draft_ = Report{};
    draft_.contributors = layout_.world;
    draft_.dense_bytes = layout_.count * dtype_bytes(layout_.dtype);
    lent_ = lent;
    ADDEND_TRY(do_begin(gradient));
    state_ = State::kRounds;
    return {};
  }

  /// Lanes that are another worker's by the bounds of their plane do not count.
  uint64_t own_bytes(const Round& round) const {
    uint64_t bytes = 0;
    for (const Plane& plane : round) {
      const uint64_t* own = plane.bounds == nullptr ? nullptr : plane.bounds + layout_.worker;
      bytes += op_bytes(plane.op, own == nullptr ? plane.lanes : own[1] - own[0]);
    }
    return bytes;
  }

  Status check_segment(const char* call, uint64_t segment) const {
    if (state_ != State::kIdle) return out_of_order(call);
    const uint64_t segments = std::max<uint64_t>(layout_.segments.size(), 1);
    if (segment < segments) return {};
    return make_error(Errc::kInvalidArgument, std::string(call) + ": no segment " +
                                                  std::to_string(segment) + " in a layout of " +
                                                  std::to_string(segments));
  }

  Error out_of_order(const char* call) const {
    return make_error(
        Errc::kInvalidArgument,
        std::string(call) +
            " is out of order: a step is begin, next_round until it returns false, finish");
  }

  Layout layout_;
  State state_ = State::kIdle;
  void* lent_ = nullptr;
  Report draft_;
  Report report_;
};

using SteppedCodec = Stepped<Codec>;

}  // namespace addend
