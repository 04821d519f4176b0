// SPDX-License-Identifier: Apache-2.0
// The three passes over a gradient that an index and its values are made of, by element width (2 or
// 4 bytes: the kernels only ask whether an element is zero, so bf16 and f16 share one). Each has a
// scalar reference and a Highway version that must write the same bytes.
//
//   gradient  0 a 0 0 b c 0 ...        scan    reads the gradient once; writes the bitmap and the
//   non-zeros in order bitmap    0 1 0 0 1 1 0 ...        pack    gathers the selected elements,
//   zeros among them, in order kept      a b c ...                unpack  writes the gradient once:
//   selected elements in order, zeros elsewhere
#pragma once

#include <cstdint>

namespace addend::index {

struct ScanResult {
  uint64_t nonzeros = 0;
  uint64_t kept = 0;            ///< how many of them, from the front, were kept
  bool negative_zeros = false;  ///< whether some element is -0.0
};

/// Sets bit i of `bitmap` iff element i is not zero (-0.0 is zero, NaN is not) and appends the
/// non-zeros of a word of the bitmap to `kept` as long as 64 more would fit. REQUIRES: bitmap has
/// words_for(count) words; kept has room for kept_capacity elements plus Buffer::kSlack bytes.
ScanResult scan(uint32_t width, const void* gradient, uint64_t count, uint64_t* bitmap, void* kept,
                uint64_t kept_capacity);

/// That there are Buffer::kSlack bytes of room past what is selected.
inline constexpr uint64_t kSlackRoom = ~uint64_t{0};

/// packed[r] = gradient[i] for the r-th set bit i of `selection`. Returns how many. `room`:
/// elements that may be written, at least those selected; others may own what follows.
uint64_t pack(uint32_t width, const void* gradient, uint64_t count, const uint64_t* selection,
              void* packed, uint64_t room = kSlackRoom);

/// The same from a scan's output instead of the gradient: packed[r] = the kept value of the r-th
/// selected position, or zero where `bitmap` has no bit. REQUIRES: bitmap is a subset of selection;
/// room as for pack; Buffer::kSlack readable bytes past what was kept.
uint64_t place(uint32_t width, const void* kept, const uint64_t* bitmap, uint64_t words,
               const uint64_t* selection, void* packed, uint64_t room = kSlackRoom);

/// Gradients of so many bytes are written past the caches, which hold something better.
inline constexpr uint64_t kStreamBytes = uint64_t{4} << 20;

/// gradient[i] = packed[rank of i] where selected, else zero. `stream`: past the caches. REQUIRES:
/// Buffer::kSlack readable bytes past the packed elements.
void unpack(uint32_t width, const void* packed, const uint64_t* selection, uint64_t count,
            void* gradient, bool stream = false);

/// The same for a gradient that holds +0.0 outside the selection: words of the bitmap without a
/// selected position are not touched.
void unpack_into_zeros(uint32_t width, const void* packed, const uint64_t* selection,
                       uint64_t count, void* gradient, bool stream = false);

}  // namespace addend::index
