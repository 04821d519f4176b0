// SPDX-License-Identifier: Apache-2.0
// A share of a thread's time, so that whoever makes it work most cannot keep it from the others.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace addend::service {

using Clock = std::chrono::steady_clock;

/// A sixteenth of a thread, and a tenth of a second at once. One thread at a time.
class Share {
 public:
  void charge(Clock::time_point now, std::chrono::nanoseconds used) {
    repaid_ = std::max(repaid_, now) + kInverse * used;
  }
  /// Until when nothing may be done for its owner.
  Clock::time_point free_at() const { return repaid_ - kInverse * kBurst; }
  /// Whether it is as if it had never been used.
  bool untouched(Clock::time_point now) const { return repaid_ <= now; }

 private:
  static constexpr int kInverse = 16;
  static constexpr std::chrono::milliseconds kBurst{100};
  Clock::time_point repaid_{};
};

/// What the calling thread has worked so far: on a busy machine nobody pays for the others.
inline std::chrono::nanoseconds worked() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// Tells apart what a thread works for one and for another. One thread at a time, always the same.
class Meter {
 public:
  /// What the calling thread has worked since the last call.
  std::chrono::nanoseconds lap() {
    const auto now = worked();
    return now - std::exchange(last_, now);
  }

 private:
  std::chrono::nanoseconds last_{};
};

}  // namespace addend::service
