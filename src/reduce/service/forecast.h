// SPDX-License-Identifier: Apache-2.0
// What the next step will begin with, by the steps before it.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "wire/hash.h"

namespace addend::service_client {

/// Training repeats itself: after the same two steps comes what came the last time. Fed with steps
/// that all workers have summed, so that all expect the same.
class Forecast {
 public:
  bool expects(uint64_t shape) const {
    const auto found = next_.find(recent_);
    return found != next_.end() && found->second == shape;
  }
  /// A step whose first round looked like this is over.
  void add(uint64_t shape) {
    if (next_.size() >= kMost) next_.clear();
    next_[recent_] = shape;
    recent_ = addend_random(last_, shape);
    last_ = shape;
  }

 private:
  static constexpr std::size_t kMost = 4096;  // plans that never repeat are not kept for ever
  std::unordered_map<uint64_t, uint64_t> next_;
  uint64_t last_ = 0, recent_ = 0;  // of the latest two steps
};

}  // namespace addend::service_client
