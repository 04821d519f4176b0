// SPDX-License-Identifier: Apache-2.0
// Strangers' plans and planes: any 72 bytes as a plan, and plans built from the input so that the
// fuzzer reaches what stands behind the parser. Hostile planes may be refused or decoded, never
// hurt; honest ones give back their gradient.
#include <cstdint>
#include <cstring>
#include <vector>

#include "addend/snapshot.h"
#include "codec/exact/snapshot_plan.h"
#include "fuzz/input.h"
#include "tests/support/exact_sum.h"

using addend::DType;
using addend::SnapshotPlan;
using addend::fuzz::Input;
using addend::fuzz::require;

namespace {

constexpr std::size_t kPlanBytes = 72;
constexpr uint64_t kMostBytes = uint64_t{1} << 20;

uint64_t plane_bytes(const SnapshotPlan& plan) {
  if (plan.dense) return plan.count * addend::dtype_bytes(plan.dtype);
  if (plan.count >= kMostBytes || plan.cells >= kMostBytes) return kMostBytes;
  return plan.count / 8 + plan.cells * plan.cell_words * 8;
}

void decode_hostile(const SnapshotPlan& plan, Input& input) {
  auto snapshot = addend::allocate_snapshot(plan);
  require(snapshot.has_value());
  require(addend::check_snapshot(plan, snapshot->planes).has_value());
  for (addend::Plane& plane : snapshot->planes)
    input.cycle(plane.data, addend::op_bytes(plane.op, plane.lanes));
  std::vector<uint64_t> out(plan.count * addend::dtype_bytes(plan.dtype) / 8 + 1,
                            0x5A5A5A5A5A5A5A5A);
  const std::vector<uint64_t> untouched = out;
  const auto decoded = addend::decode_snapshot(plan, *snapshot, out.data());
  if (!decoded) require(out == untouched);
}

void decode_honest(const SnapshotPlan& plan, Input& input) {
  const uint32_t width = addend::dtype_bytes(plan.dtype);
  std::vector<uint64_t> gradient(plan.count * width / 8 + 1);
  for (int i = 0; i < 100 && plan.count > 0 && !input.empty(); ++i) {
    const uint64_t at = input.take<uint16_t>() % plan.count;
    const uint32_t bits = input.take<uint32_t>();
    std::memcpy(reinterpret_cast<uint8_t*>(gradient.data()) + at * width, &bits, width);
  }
  const auto snapshot = addend::encode_snapshot(plan, {gradient.data(), plan.count, plan.dtype});
  if (!snapshot) {
    require(snapshot.error().code == addend::Errc::kCapacity);
    return;
  }
  std::vector<uint64_t> out(gradient.size());
  const auto decoded = addend::decode_snapshot(plan, *snapshot, out.data());
  if (!decoded) {
    require(decoded.error().code == addend::Errc::kCapacity);
    return;
  }
  for (uint64_t i = 0; i < plan.count; ++i) {
    const float x = addend::testing_support::element(plan.dtype, gradient.data(), i);
    const float y = addend::testing_support::element(plan.dtype, out.data(), i);
    require(x == y || (x != x && y != y));
  }
}

// A plan as a stranger could have made it.
SnapshotPlan build_plan(Input& input) {
  SnapshotPlan plan;
  plan.dtype = static_cast<DType>(input.between(0, 2));
  plan.count = input.between(0, 3000);
  plan.contributors = static_cast<uint32_t>(input.between(1, addend::exact::kMaxWorld));
  plan.dense = input.between(0, 15) == 0;
  if (plan.dense) return plan;
  plan.seed = input.take<uint64_t>();
  plan.capacity = input.take<uint32_t>();
  plan.non_finite = input.between(0, 1) == 1;
  const uint32_t flags = plan.non_finite ? 1 : 0;
  const uint32_t digits = addend::exact::most_digits(plan.contributors);
  plan.cell_words = static_cast<uint32_t>(input.between(1, std::min(8 - flags, digits))) + flags;
  plan.quantum = static_cast<int32_t>(input.between(0, 276)) - 149;
  const addend::exact::Fixed format = addend::exact::snapshot_format(plan);
  plan.top = plan.quantum + static_cast<int32_t>(format.digits * format.digit_bits) - 1;
  plan.hashes = 8;
  plan.starts = static_cast<uint32_t>(input.between(1, 20));
  plan.chunks = static_cast<uint32_t>(input.between(1, 5));
  plan.table_rows = static_cast<uint32_t>(input.between(1, 60));
  plan.cells = addend::exact::snapshot_shape(plan).cells();
  return plan;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const auto parsed = SnapshotPlan::parse({data, std::min(size, kPlanBytes)});
  if (parsed) {
    const auto written = parsed->serialize();
    require(std::memcmp(written.data(), data, kPlanBytes) == 0);
    if (plane_bytes(*parsed) < kMostBytes) decode_hostile(*parsed, input);
  }
  const SnapshotPlan plan = build_plan(input);
  require(SnapshotPlan::parse(plan.serialize()).has_value());
  decode_hostile(plan, input);
  decode_honest(plan, input);
  return 0;
}
