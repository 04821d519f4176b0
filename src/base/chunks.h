// SPDX-License-Identifier: Apache-2.0
// Loops over chunks of a gradient that threads share. Chunks are cut by the data alone, never by
// the number of threads: what a loop writes must be the same whoever does which.
#pragma once

#include <algorithm>
#include <cstdint>

namespace addend {

/// Elements of a chunk for passes at the speed of memory: long enough to be worth a wake-up. A
/// multiple of 64, so that a bitmap's words have one owner.
inline constexpr uint64_t kChunkElements = uint64_t{1} << 16;

namespace chunks {
using Call = void (*)(const void* body, uint64_t chunk, uint32_t thread);
void run(uint64_t chunks, Call call, const void* body);
}  // namespace chunks

/// How many threads may be in the body of a loop that this thread begins: memory of their own is
/// reserved for so many.
uint32_t loop_threads();

/// Calls body(chunk, thread) once for every chunk below `chunks`, in no order, and returns when all
/// have returned. `thread`, below loop_threads(), has one caller at a time. The body must not
/// throw.
template <typename Body>
void for_each_chunk(uint64_t chunks, const Body& body) {
  chunks::run(
      chunks,
      [](const void* b, uint64_t chunk, uint32_t thread) {
        (*static_cast<const Body*>(b))(chunk, thread);
      },
      &body);
}

/// Calls body(begin, end) for the parts of 0 .. count, each but the last of `length`.
template <typename Body>
void for_each_part(uint64_t count, uint64_t length, const Body& body) {
  for_each_chunk(count / length + (count % length != 0 ? 1 : 0), [&](uint64_t chunk, uint32_t) {
    body(chunk * length, std::min(count, (chunk + 1) * length));
  });
}

}  // namespace addend
