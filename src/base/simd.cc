// SPDX-License-Identifier: Apache-2.0
#include "base/simd.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include "addend/simd.h"

namespace addend {

std::atomic<bool> g_scalar_forced{false};

namespace {

// Highway tells what the machine can do; HWY_TARGETS is what this build compiled.
int64_t available() { return hwy::SupportedTargets() & HWY_TARGETS; }

// Highway's best target is its lowest bit.
template <typename Visit>
void for_each_target(int64_t mask, Visit&& visit) {
  for (; mask != 0; mask &= mask - 1)
    visit(mask & -mask);
}

// What the machine has, asked once and before anything is forced: a forced target hides the others
// from Highway.
int64_t machine_targets() {
  static const int64_t targets = available();
  return targets;
}

void reset() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  g_scalar_forced.store(false, std::memory_order_relaxed);
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for_each_target(machine_targets(),
                  [&](int64_t target) { names.emplace_back(hwy::TargetName(target)); });
  names.emplace_back(kScalarTarget);
  return names;
}

std::string simd_target() {
  if (scalar_forced()) return std::string(kScalarTarget);
  const int64_t targets = available();
  return hwy::TargetName(targets & -targets);
}

Status force_simd_target(std::string_view name) {
  const int64_t targets = machine_targets();
  reset();
  if (name.empty()) return {};
  if (name == kScalarTarget) {
    g_scalar_forced.store(true, std::memory_order_relaxed);
    return {};
  }
  std::string known;
  int64_t wanted = 0;
  for_each_target(targets, [&](int64_t target) {
    if (name == hwy::TargetName(target)) wanted = target;
    known += std::string(hwy::TargetName(target)) + " ";
  });
  if (wanted == 0) {
    return make_error(Errc::kInvalidArgument, "no SIMD target named '" + std::string(name) +
                                                  "' on this machine; it has: " + known + "scalar");
  }
  hwy::SetSupportedTargetsForTest(wanted);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return {};
}

}  // namespace addend
