// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/shared_exponent.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bits.h"
#include "base/float_environment.h"
#include "reduce/service/shared_exponent_reference.h"

namespace addend::service_client {
namespace {

bool covers(const uint32_t* shared, const uint32_t* own, uint64_t lanes) {
  for (uint64_t b = 0; b < ceil_div(lanes, kExponentBlock); ++b) {
    if (shared[b] < own[b]) return false;
  }
  return true;
}

}  // namespace

double quantum_error(uint32_t world) { return std::ldexp(world, reference::room_for(world) - 31); }

Status IntegerRounds::begin(Round& round, uint32_t world, Round& exponents) {
  round_ = &round;
  world_ = world;
  size_ = 0;
  exponents.clear();
  for (Plane& plane : round) {
    if (!is_float_sum(plane.op)) continue;
    Converted& to = converted_[size_++];
    to.plane = &plane;
    const uint64_t blocks = ceil_div(plane.lanes, kExponentBlock);
    ADDEND_TRY(to.own.reserve(blocks * sizeof(uint32_t)));
    ADDEND_TRY(to.shared.reserve(blocks * sizeof(uint32_t)));
    ADDEND_TRY(to.quanta.reserve(plane.lanes * sizeof(int32_t)));
    measure_exponents(static_cast<DType>(plane.op), plane.data, plane.lanes, to.own.as<uint32_t>());
    if (blocks > 0) {
      std::memcpy(to.shared.as<void>(), to.own.as<void>(), blocks * sizeof(uint32_t));
    }
    exponents.add({Op::kMaxU32, blocks, to.shared.as<void>(), nullptr, nullptr});
  }
  return {};
}

Status IntegerRounds::quantise(Round& integers, bool left_out) {
  const FloatEnvironment ours;
  integers = *round_;
  std::size_t next = 0;
  for (Plane& plane : integers) {
    if (!is_float_sum(plane.op)) continue;
    Converted& to = converted_[next++];
    if (left_out) {
      std::fill_n(to.quanta.as<int32_t>(), plane.lanes, 0);
    } else if (!covers(to.shared.as<uint32_t>(), to.own.as<uint32_t>(), plane.lanes)) {
      return make_error(Errc::kUndecodable,
                        "the largest exponent of all workers is below this worker's own");
    } else {
      to_quanta(static_cast<DType>(plane.op), plane.data, plane.lanes, to.shared.as<uint32_t>(),
                world_, to.quanta.as<int32_t>());
    }
    plane = {Op::kSumI32, plane.lanes, to.quanta.as<void>(), nullptr, nullptr};
  }
  return {};
}

void IntegerRounds::finish() {
  const FloatEnvironment ours;
  for (std::size_t i = 0; i < size_; ++i) {
    const Converted& from = converted_[i];
    from_quanta(static_cast<DType>(from.plane->op), from.quanta.as<int32_t>(), from.plane->lanes,
                from.shared.as<uint32_t>(), world_, from.plane->data);
  }
}

}  // namespace addend::service_client
