// SPDX-License-Identifier: Apache-2.0
// Any bits as lanes, exponents and sums of float planes that travel as integers: every SIMD target
// gives the scalar bits, multiples leave room for the world, and NaN comes of bad exponents only.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "base/bits.h"
#include "fuzz/input.h"
#include "reduce/service/shared_exponent.h"
#include "tests/support/exact_sum.h"

using addend::DType;
using addend::fuzz::Input;
using addend::fuzz::require;
using namespace addend::service_client;

namespace {

struct Answer {
  std::vector<uint32_t> exponents;
  std::vector<int32_t> quanta;
  std::vector<uint8_t> sums;
  bool operator==(const Answer&) const = default;
};

struct Case {
  DType dtype;
  uint32_t world;
  uint64_t count;
  std::vector<uint8_t> lanes;
  std::vector<uint32_t> more;  // added to exponents by other workers
  std::vector<uint32_t> hostile;
  std::vector<int32_t> sums;
};

Case read_case(Input& input) {
  Case c;
  c.dtype = static_cast<DType>(input.take<uint8_t>() % 3);
  c.world = 1 + input.take<uint8_t>() % 64;
  c.count = input.take<uint16_t>() % 700;
  const uint8_t calm = input.take<uint8_t>();
  const uint64_t blocks = addend::ceil_div(c.count, kExponentBlock);
  c.lanes.resize(c.count * dtype_bytes(c.dtype));
  c.more.resize(blocks);
  c.hostile.resize(blocks);
  c.sums.resize(c.count);
  input.cycle(c.lanes.data(), c.lanes.size());
  input.cycle(c.more.data(), blocks * 4);
  input.cycle(c.hostile.data(), blocks * 4);
  input.cycle(c.sums.data(), c.count * 4);
  // Random bits are seldom finite for long.
  const uint32_t width = dtype_bytes(c.dtype);
  for (uint64_t i = 0; i < c.count && calm % 4 != 0; ++i)
    c.lanes[i * width + width - 1] &= 0xBF;
  for (uint32_t& exponent : c.hostile)
    exponent >>= exponent % 32;
  return c;
}

Answer run(const Case& c) {
  Answer answer;
  answer.exponents.resize(c.more.size());
  measure_exponents(c.dtype, c.lanes.data(), c.count, answer.exponents.data());
  std::vector<uint32_t> shared = answer.exponents;
  for (std::size_t b = 0; b < shared.size(); ++b)
    shared[b] += c.more[b] % 3 == 0 ? 0 : c.more[b] % 40;
  answer.quanta.resize(c.count);
  to_quanta(c.dtype, c.lanes.data(), c.count, shared.data(), c.world, answer.quanta.data());
  answer.sums.resize(c.lanes.size());
  from_quanta(c.dtype, c.sums.data(), c.count, c.hostile.data(), c.world, answer.sums.data());
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> targets = addend::simd_targets();
  Input input(data, size);
  const Case c = read_case(input);
  require(addend::force_simd_target(addend::kScalarTarget).has_value());
  const Answer expected = run(c);
  for (const int32_t quanta : expected.quanta)
    require(std::abs(int64_t{quanta}) * c.world <= INT32_MAX);
  for (uint64_t i = 0; i < c.count; ++i) {
    const bool bad = c.hostile[i / kExponentBlock] >= kNonFiniteExponent;
    require(std::isnan(addend::testing_support::element(c.dtype, expected.sums.data(), i)) == bad);
  }
  for (const std::string& target : targets) {
    require(addend::force_simd_target(target).has_value());
    require(run(c) == expected);
  }
  require(addend::force_simd_target("").has_value());
  return 0;
}
