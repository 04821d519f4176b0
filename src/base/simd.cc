// SPDX-License-Identifier: Apache-2.0
#include "base/simd.h"

#include "addend/simd.h"

#define HWY_WANT_AVX3_DL 1
#include <hwy/highway.h>
#include <hwy/targets.h>

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

void reset() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  g_scalar_forced.store(false, std::memory_order_relaxed);
}

}  // namespace

std::vector<std::string> simd_targets() {
  // Ask the machine, not the mask that a forced target leaves behind.
  const std::string current = simd_target();
  reset();
  std::vector<std::string> names;
  for_each_target(available(),
                  [&](int64_t target) { names.emplace_back(hwy::TargetName(target)); });
  const bool is_best = !names.empty() && current == names.front();
  names.emplace_back(kScalarTarget);
  if (!is_best) (void)force_simd_target(current).has_value();
  return names;
}

std::string simd_target() {
  if (scalar_forced()) return std::string(kScalarTarget);
  const int64_t targets = available();
  return hwy::TargetName(targets & -targets);
}

Status force_simd_target(std::string_view name) {
  reset();
  if (name.empty()) return {};
  if (name == kScalarTarget) {
    g_scalar_forced.store(true, std::memory_order_relaxed);
    return {};
  }
  std::string known;
  int64_t wanted = 0;
  for_each_target(available(), [&](int64_t target) {
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
