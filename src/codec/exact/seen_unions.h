// SPDX-License-Identifier: Apache-2.0
// The sizes of the unions that the last steps showed, and what the next one may be. Integers only:
// all workers must come to the same figures.
#pragma once

#include <array>
#include <cstdint>

namespace addend::exact {

class SeenUnions {
 public:
  /// Unions that `expected` looks back at: so many steps of another density change a plan.
  static constexpr uint64_t kRecent = 8;
  /// Unions that `capacity` looks back at: so many are needed to know a tail of 2 %.
  static constexpr uint64_t kRemembered = 32;

  void add(uint64_t nonzeros);
  void clear() { seen_ = 0; }
  bool any() const { return seen_ > 0; }

  /// The mean of the recent ones. The costs of all modes but sketches are linear in the union, so
  /// the mode that is cheapest for the mean was cheapest over these steps together; and one step
  /// that is unlike the others does not change the plan. REQUIRES: any().
  uint64_t expected() const;

  /// What a sketch must hold so that about one union in a hundred outgrows it: beyond the median,
  /// one and a half times as far as the largest but one. The largest does not count: one odd step
  /// must not make all the others large. While few are known an eighth is added. REQUIRES: any().
  uint64_t capacity() const;

 private:
  std::array<uint64_t, kRemembered> unions_{};  // number i at i modulo the length
  uint64_t seen_ = 0;
};

}  // namespace addend::exact
