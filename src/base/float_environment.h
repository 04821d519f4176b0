// SPDX-License-Identifier: Apache-2.0
// The floating-point settings of a thread. Some callers flush subnormals to zero or round otherwise
// than to nearest (torch.set_flush_denormal, start-up code of -ffast-math), and threads inherit it
// from whoever started them. What is computed here must not depend on that: workers would differ.
#pragma once

#include <cstdint>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace addend {

/// While it lives, this thread rounds to nearest and keeps subnormals. Exception masks stay the
/// caller's, and what is raised meanwhile does not show afterwards. The barriers keep loads and
/// stores, and so what is computed between them, inside.
class FloatEnvironment {
 public:
  FloatEnvironment() : before_(read()) {
    const Word wanted = before_ & ~kControl;
    changed_ = wanted != before_;
    if (changed_) write(wanted);
  }
  ~FloatEnvironment() {
    if (changed_) write(before_);
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kControl = 0x8000 | 0x6000 | 0x0040;  // MXCSR: FZ, RC, DAZ
  static Word read() {
    Word word = 0;
    __asm__ volatile("stmxcsr %0" : "=m"(word));
    return word;
  }
  static void write(Word word) { __asm__ volatile("ldmxcsr %0" : : "m"(word) : "memory"); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kControl =  // FPCR: DN, FZ, RMode, FZ16, AH, FIZ
      1u << 25 | 1u << 24 | 3u << 22 | 1u << 19 | 1u << 1 | 1u;
  static Word read() {
    Word word = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  // No flush mode is known here; the rounding direction stands for all of it.
  using Word = uint32_t;
  static constexpr Word kControl = ~Word{0};
  static_assert(FE_TONEAREST == 0);
  static Word read() { return static_cast<Word>(std::fegetround()); }
  static void write(Word word) { std::fesetround(static_cast<int>(word)); }
#endif

  Word before_;
  bool changed_;
};

}  // namespace addend
