// SPDX-License-Identifier: Apache-2.0
// A thread that flushes subnormals to zero, as torch.set_flush_denormal(True) leaves it.
#pragma once

#include <cstdint>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace addend::testing_support {

/// While it lives, this thread takes subnormals for zero and makes none.
class Flushed {
 public:
#if defined(__x86_64__)
  static constexpr bool kKnown = true;
  Flushed() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~Flushed() { _mm_setcsr(before_); }

 private:
  uint32_t before_;
#elif defined(__aarch64__)
  static constexpr bool kKnown = true;
  Flushed() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    const uint64_t flushing = before_ | 1u << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(flushing));
  }
  ~Flushed() { __asm__ volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_ = 0;
#else
  static constexpr bool kKnown = false;
  Flushed() {}
  ~Flushed() {}
#endif
};

}  // namespace addend::testing_support
