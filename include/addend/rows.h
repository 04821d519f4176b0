// SPDX-License-Identifier: Apache-2.0
// Sums of sparse rows: each worker brings some rows of a large table, and all get the sum of those
// that anybody brought. A codec like the others, so that pipelines and reducers drive it; only what
// a gradient is differs. Part of module `codec`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "addend/codec.h"

namespace addend {

/// Element type of sparse rows. Integers wrap. Reducers add the first three; the others are
/// gathered from all workers and added by the codec.
enum class RowElement : uint8_t { kF32, kBf16, kF16, kF64, kI64, kI32, kI8, kU8 };

constexpr uint32_t row_element_bytes(RowElement element) {
  constexpr uint8_t kBytes[] = {4, 2, 2, 8, 8, 4, 1, 1};
  return kBytes[static_cast<std::size_t>(element)];
}

/// What all workers agree on before the first step. Must be equal on all workers, but for `worker`.
struct RowLayout {
  RowElement element = RowElement::kF32;
  uint64_t width = 1;   ///< elements a row
  uint32_t world = 1;   ///< workers whose rows will be summed
  uint32_t worker = 0;  ///< this worker's number, the only field that differs between workers
  uint64_t seed = 0;
  uint64_t id = 0;          ///< of the table: a digest of its name; Layout::bucket of the codec
  double scale = 1;         ///< values are multiplied by it before they are added; 1 for integers
  uint64_t first_step = 0;  ///< the number of the first step
  NetworkHint network;
};

/// What Codec::begin takes for a gradient. Rows come in any order and may repeat: then all count.
struct RowGradient {
  const int64_t* rows = nullptr;
  const void* values = nullptr;  ///< count x width elements, naturally aligned
  uint64_t count = 0;            ///< rows; may differ between workers
};

/// The codec of one table. Its begin takes a RowGradient, which with what it points to stays as it
/// is until finish or cancel; finish takes the same pointer, or null, and writes nothing to it.
/// Its modes are "gather" (rows and values of all go to all, and are added in the order of workers)
/// and "union" (row numbers go to all, values travel packed in the order of the union, as a sum or
/// through the codec that the spec names). Needs every worker: set_missing is kUnsupported.
class RowCodec : public Codec {
 public:
  /// What the last finish found, until the next begin: rows that any worker brought, ascending,
  /// each once; and for each of them `width` elements.
  virtual std::span<const int64_t> rows() const = 0;
  virtual const void* sums() const = 0;
};

/// `spec`: how packed values travel. "dense" and "exact" add them as they are; lossy codecs and
/// reproducible values code them, where the element type is one that reducers add. Error feedback
/// is refused: it belongs to elements, and rows come and go.
Result<std::unique_ptr<RowCodec>> create_row_codec(const CodecSpec& spec, const RowLayout& layout);

}  // namespace addend
