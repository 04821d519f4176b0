// SPDX-License-Identifier: Apache-2.0
// What workers must share, as a plane that shows all of them alike whether they do.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "addend/reduce.h"

namespace addend {

/// All workers hold w iff max(w) == w and max(~w) == ~w. Values are sent in 32-bit halves, each
/// with its complement, and the plane always has room for kMaxClaims: one size, whoever brings
/// what.
class ClaimLanes {
 public:
  /// REQUIRES: at most Reducer::kMaxClaims, which outlive this.
  explicit ClaimLanes(std::span<const Reducer::Claim> claims);
  static constexpr std::size_t kLanes = Reducer::kMaxClaims * 4;

  Plane plane() { return {Op::kMaxU32, lanes_.size(), lanes_.data(), nullptr, nullptr}; }
  /// kMismatch, with the first that differs, once the plane holds the sums.
  Status check(const Reducer& reducer) const;

 private:
  static constexpr std::size_t kLanesPerClaim = kLanes / Reducer::kMaxClaims;
  std::span<const Reducer::Claim> claims_;
  std::array<uint32_t, kLanes> lanes_{};
};

/// What of a round all workers must share: operations, lanes and tables.
uint64_t shape_of(const Round& round);

}  // namespace addend
