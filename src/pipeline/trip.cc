// SPDX-License-Identifier: Apache-2.0
#include "pipeline/trip.h"

#include <algorithm>
#include <cstring>

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Status Trip::begin(void* gradient, std::span<const uint8_t> header, const Options& options) {
  if (at_ != At::kHome) return make_error(Errc::kInvalidArgument, "the trip is under way already");
  if (options.alike_bytes > header.size())
    return make_error(Errc::kInvalidArgument, "a header has at most its own bytes in common");
  gradient_ = gradient;
  header_.assign(header.begin(), header.end());
  options_ = options;
  round_number_ = 0;
  spans_.clear();
  at_ = At::kBegun;
  return {};
}

void Trip::note(Stage stage, Clock::time_point begin) {
  spans_.push_back({stage, begin, Clock::now()});
}

Status Trip::next_round() {
  const auto more = codec_->next_round(round_);
  if (!more) return more.error();
  more_ = *more;
  if (more_) ++round_number_;
  return {};
}

Status Trip::encode() {
  if (at_ != At::kBegun) return {};
  ADDEND_TRY(options_.in_place ? codec_->begin_in_place(gradient_) : codec_->begin(gradient_));
  at_ = At::kEncoded;
  ADDEND_TRY(next_round());
  round_number_ = 0;  // the header comes first
  return {};
}

Status Trip::start() {
  std::array<std::span<const uint8_t>, Round::kMaxPlanes + 1> pieces;
  std::size_t count = 0;
  const bool greets = at_ == At::kEncoded;
  if (greets) pieces[count++] = header_;
  carried_ = more_ && round_.bytes() <= options_.mesh_bytes;
  if (carried_) {
    for (const Plane& plane : round_) {
      pieces[count++] = {static_cast<const uint8_t*>(plane.data), op_bytes(plane.op, plane.lanes)};
    }
  }
  sent_ = Clock::now();
  const auto exchange = mesh_->start(std::span(pieces).first(count));
  if (!exchange) return exchange.error();
  exchange_ = *exchange;
  at_ = greets ? At::kGreeting : At::kTravelling;
  return {};
}

bool Trip::alike() const {
  const auto own = mesh_->message(exchange_, mesh_->rank());
  for (uint32_t rank = 0; rank < mesh_->world(); ++rank) {
    const auto other = mesh_->message(exchange_, rank);
    if (!own || !other || other->size() < header_.size() ||
        std::memcmp(own->data(), other->data(), options_.alike_bytes) != 0) {
      return false;
    }
  }
  return true;
}

Result<TripState> Trip::run(std::chrono::nanoseconds patience) {
  const auto until = Clock::now() + patience;
  if (at_ == At::kBegun) {
    const auto begin = Clock::now();
    ADDEND_TRY(encode());
    note(Stage::kEncode, begin);
  }
  for (;;) {
    switch (at_) {
      case At::kHome:
      case At::kBegun:
        return make_error(Errc::kInvalidArgument, "the trip was not begun");
      case At::kEncoded:
        ADDEND_TRY(start());
        break;
      case At::kGreeting:
      case At::kTravelling: {
        const auto arrived =
            mesh_->wait(exchange_, std::max(until - Clock::now(), Clock::duration::zero()));
        if (!arrived) return arrived.error();
        if (!*arrived) return TripState::kWaiting;
        const bool greets = at_ == At::kGreeting;
        note(greets ? Stage::kAgree : Stage::kReduce, sent_);
        if (greets && !alike()) return TripState::kDifferent;
        if (greets && more_) round_number_ = 1;
        if (carried_) {
          const uint64_t offset = greets ? header_.size() : 0;
          ADDEND_TRY(mesh_->sum(exchange_, offset, {round_.begin(), round_.size}));
        }
        at_ = carried_ || !more_ ? At::kReduced : At::kLarge;
        ADDEND_TRY(mesh_->release(exchange_));
        break;
      }
      case At::kLarge:
        return TripState::kLarge;
      case At::kReduced: {
        const auto begin = Clock::now();
        if (more_) ADDEND_TRY(next_round());
        if (more_) {
          note(Stage::kEncode, begin);
          if (round_.bytes() > options_.mesh_bytes) {
            at_ = At::kLarge;
          } else {
            ADDEND_TRY(start());
          }
          break;
        }
        if (!options_.decode) {
          at_ = At::kHome;
          return TripState::kSummed;
        }
        ADDEND_TRY(codec_->finish(gradient_));
        at_ = At::kHome;
        note(Stage::kDecode, begin);
        return TripState::kDecoded;
      }
    }
  }
}

void Trip::reduced() {
  if (at_ == At::kLarge) at_ = At::kReduced;
}

void Trip::cancel() {
  if (at_ == At::kHome) return;
  if (under_way()) static_cast<void>(mesh_->release(exchange_));  // fails for strangers' only
  if (at_ != At::kBegun) codec_->cancel();
  at_ = At::kHome;
}

}  // namespace addend
