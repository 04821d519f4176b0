// SPDX-License-Identifier: Apache-2.0
// Float planes for adders that know integers only: all workers agree on one exponent for every
// block of lanes (a max plane), then lanes travel as multiples of a quantum (i32 sums), and the sum
// of integers is read as a float again. The order of arrival does not matter, and every worker
// reads the same bits. docs/formats/planes.md, "Floats as integers".
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "addend/plane.h"
#include "addend/result.h"
#include "base/buffer.h"

namespace addend::service_client {

/// Lanes that share an exponent.
inline constexpr uint64_t kExponentBlock = 256;
/// The exponent of a block with a NaN or an infinity: all its sums are NaN.
inline constexpr uint32_t kNonFiniteExponent = 255;

inline bool is_float_sum(Op op) {
  return op == Op::kSumF32 || op == Op::kSumBf16 || op == Op::kSumF16;
}

/// How far a sum of floats may be off, in units of its block's largest magnitude, before it is
/// rounded to its type: half a quantum a worker. REQUIRES: world is 1 to 4096.
double quantum_error(uint32_t world);

/// The exponent field, as in an f32, of each block's largest magnitude.
void measure_exponents(DType dtype, const void* lanes, uint64_t count, uint32_t* exponents);

/// Lanes as multiples of their block's quantum, to nearest even. REQUIRES: no exponent is below the
/// lanes' own; world is 1 to 4096, and sums over it do not overflow.
void to_quanta(DType dtype, const void* lanes, uint64_t count, const uint32_t* exponents,
               uint32_t world, int32_t* quanta);

/// The floats that (summed) multiples stand for. Any numbers are safe.
void from_quanta(DType dtype, const int32_t* quanta, uint64_t count, const uint32_t* exponents,
                 uint32_t world, void* lanes);

/// A round whose float sums travel as integers, and what travels instead, in two rounds. The
/// original's lanes stay as they are until finish. One thread at a time; memory is kept.
class IntegerRounds {
 public:
  /// Measures this worker's lanes: the max planes to reduce first. `round` is used until finish.
  Status begin(Round& round, uint32_t world, Round& exponents);
  /// With the exponents of all workers: the planes to reduce then. Planes that are no float sums go
  /// as they are. `left_out`: the exponents are those of the others, who went on at a quorum; this
  /// worker's lanes may not fit them, and it sends zeros, which are not added either. Otherwise
  /// kUndecodable if an exponent came back smaller than this worker's.
  Status quantise(Round& integers, bool left_out = false);
  /// Writes the sums into the original's planes.
  void finish();

 private:
  struct Converted {
    Plane* plane = nullptr;
    Buffer own, shared;  // exponents
    Buffer quanta;
  };

  uint32_t world_ = 1;
  Round* round_ = nullptr;
  std::array<Converted, Round::kMaxPlanes> converted_;
  std::size_t size_ = 0;
};

}  // namespace addend::service_client
