// SPDX-License-Identifier: Apache-2.0
// Files: compressed gradients that can be added (.add) and NumPy arrays (.npy). The file module
// links `fold`, never a codec: adding files is proved not to decode.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"

namespace addend {

/// A gradient read from a .npy file. One-dimensional here; `shape` remembers what the file said.
struct NpyArray {
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> storage;  ///< 8-byte aligned; `count` elements of dtype from the start
  uint64_t count = 0;

  const void* data() const { return storage.data(); }
  void* data() { return storage.data(); }
};

/// Accepts little-endian float32 ('<f4'), float16 ('<f2') and bfloat16 (as ml_dtypes writes it), C
/// or Fortran order (Fortran order of more than one dimension is refused by name). Versions 1.0
/// to 3.0.
Result<NpyArray> parse_npy(std::span<const uint8_t> bytes);
Result<NpyArray> read_npy(const std::string& path);
/// Writes beside the target and renames: on failure no file is left.
Status write_npy(const std::string& path, const NpyArray& array);

/// What an .add file holds: a plan as opaque bytes, planes, and how many gradients are in the sum.
struct AddFile {
  AddFile() = default;
  AddFile(AddFile&&) = default;  // move-only: a copy's planes would point into the original
  AddFile& operator=(AddFile&&) = default;

  std::vector<uint8_t> plan;    ///< written by SnapshotPlan::serialize, compared bytewise here
  std::vector<uint64_t> shape;  ///< of the array that went in; must agree to be added
  uint32_t contributors = 1;
  uint32_t max_contributors =
      1;  ///< the plan's limit, repeated so that an adder need not know plans
  std::vector<std::vector<uint64_t>> storage;
  Round planes;
};

Result<AddFile> parse_add_file(std::span<const uint8_t> bytes);
Result<AddFile> read_add_file(const std::string& path);
std::vector<uint8_t> serialize_add_file(const AddFile& file);
/// Writes beside the target and renames: on failure no file is left.
Status write_add_file(const std::string& path, const AddFile& file);

/// acc += in, by folding planes. kMismatch if the plans or shapes differ, kCapacity if the
/// contributors would exceed the plan's limit; acc is unchanged then.
Status fold_files(AddFile& acc, const AddFile& in);

}  // namespace addend
