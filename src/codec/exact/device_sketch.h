// SPDX-License-Identifier: Apache-2.0
// Sketches on a device: the planes of ExactCodec's, and what comes of their sums.
#pragma once

#include <optional>

#include "addend/codec.h"
#include "codec/exact/device_reproducible.h"
#include "codec/exact/sketch_kernels.h"
#include "codec/index/device_counted.h"
#include "cuda/memory.h"

namespace addend::exact {

/// REQUIRES of all calls: the device is the calling thread's. A step has them in the order of the
/// declarations.
class DeviceSketch {
 public:
  /// `layout` must outlive it.
  DeviceSketch(const cuda::Device& device, const index::IndexKernels& kernels,
               const Layout& layout);
  Status open();

  /// Adds the planes of cells and, by a window, of what escapes. By formats if these are given.
  /// `local` and `kept`: a scan's.
  Status insert(const SketchShape& shape, const Quanta& quanta, const void* gradient,
                const uint64_t* local, const void* kept, Round& round);

  /// Enqueues, of the folded union, which keys travel otherwise.
  Status split(const uint64_t* bitmap);
  /// The largest value's exponent, as learned from. Waits for that.
  Result<uint32_t> top() const;
  Result<uint64_t> fix_up_count() const { return fix_up_.size(); }

  /// Peels; `all` are the keys by a window. Waits for how many stick.
  Status peel(const index::CountedUnion& all, uint64_t keys);
  uint64_t stuck() const { return stuck_count_; }

  /// Adds the planes of the stuck keys and of `fix_up` escaped ones.
  Status open_fix_up(float factor, uint64_t fix_up, DeviceReproducible* values, Round& round);

  /// Whether all cells are zero once everything is taken out of them. Waits for it where keys
  /// stick.
  Status settle();
  /// The union's elements, in order.
  Status assemble(const index::CountedUnion& all, float scale, uint64_t fix_up,
                  DeviceReproducible* reproducible, void* values);

  uint64_t memory_bytes() const;

 private:
  Status reserve_bins();
  uint32_t width() const { return dtype_bytes(layout_.dtype); }
  uint64_t words() const { return words_for(layout_.count); }
  bool by_formats() const { return quanta_.lanes != nullptr; }

  const cuda::Device device_;
  const Layout& layout_;
  const SketchKernels* kernels_ = nullptr;

  SketchShape shape_;
  SketchRoom room_{};
  SketchBins bins_{};
  Quanta quanta_{};
  const void* gradient_ = nullptr;
  uint64_t stuck_count_ = 0;
  std::optional<uint64_t> left_cells_;  // not zero once this step's keys were peeled

  index::DeviceCounted keys_, fix_up_, stuck_;
  cuda::Mailbox topped_, peeled_;
  cuda::DeviceBuffer cells_, escape_, top_;  // planes
  cuda::DeviceBuffer stuck_values_;          // plane: integers of stuck keys
  cuda::DeviceBuffer fix_values_;            // plane: elements that escaped; or decoded ones
  cuda::DeviceBuffer local_escape_, given_, starts_, positions_, numbers_, slots_, workspace_,
      found_;
};

}  // namespace addend::exact
