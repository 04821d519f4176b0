// SPDX-License-Identifier: Apache-2.0
// Plan bytes, little endian: docs/formats/add-file.md, "Plan bytes".
#include "codec/exact/snapshot_plan.h"

#include <string>

#include "base/bits.h"
#include "wire/sketch_hash.h"

namespace addend {
namespace {

constexpr uint32_t kPlanVersion = 2;
constexpr std::size_t kPlanBytes = 72;
constexpr uint64_t kMaxCount = uint64_t{1} << 56;

class Writer {
 public:
  template <typename T>
  Writer& put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
    }
    return *this;
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <typename T>
  void get(T* value) {
    uint64_t word = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      word |= uint64_t{bytes_[at_++]} << (8 * i);
    *value = static_cast<T>(word);
  }

 private:
  std::span<const uint8_t> bytes_;
  std::size_t at_ = 0;
};

Error malformed(const std::string& why) {
  return make_error(Errc::kMalformed, "snapshot plan: " + why);
}

Status check_sketch(const SnapshotPlan& plan) {
  if (plan.hashes != ADDEND_SKETCH_RUN) return malformed("the number of hashes is not 8");
  if (plan.chunks == 0 || plan.starts == 0 || plan.table_rows == 0 ||
      plan.table_rows > 1000000000) {
    return malformed("the sketch has no cells or too many");
  }
  const uint64_t chunk = exact::snapshot_shape(plan).chunk_cells();
  if (chunk >> 32 != 0 || plan.cells != chunk * plan.chunks) {
    return malformed("the cell count does not follow from the sketch's shape");
  }
  if (plan.cells > kMaxCount) return malformed("more than 2^56 cells");
  const uint32_t special = plan.non_finite ? 1 : 0;
  if (plan.cell_words < 1 + special || plan.cell_words > exact::kMaxFixedWords) {
    return malformed("cells have an impossible width");
  }
  const exact::Fixed format = exact::snapshot_format(plan);
  if (format.digits > exact::most_digits(plan.contributors)) {
    return malformed("cells have more digits than any range of floats needs");
  }
  if (plan.quantum < exact::kLowestBit || plan.quantum > exact::kHighestBit ||
      plan.top != plan.quantum + static_cast<int32_t>(format.digits * format.digit_bits) - 1) {
    return malformed("the range of bits does not follow from the cells' width");
  }
  return {};
}

// A dense plan has no sketch: equal plans must have equal bytes.
Status check_dense(const SnapshotPlan& plan) {
  const bool bare = plan.seed == 0 && plan.capacity == 0 && plan.cells == 0 &&
                    plan.cell_words == 0 && plan.quantum == 0 && plan.top == 0 &&
                    plan.hashes == 0 && plan.starts == 0 && plan.chunks == 0 &&
                    plan.table_rows == 0 && !plan.non_finite;
  return bare ? Status{} : Status(malformed("a dense plan has fields of a sketch"));
}

}  // namespace

namespace exact {

SketchShape snapshot_shape(const SnapshotPlan& plan) {
  SketchShape shape;
  shape.seed = plan.seed;
  shape.hashes = plan.hashes;
  shape.starts = plan.starts;
  shape.chunks = plan.chunks;
  shape.table_rows = plan.table_rows;
  shape.words = plan.cell_words;
  return shape;
}

Fixed snapshot_format(const SnapshotPlan& plan) {
  Fixed format;
  format.quantum = plan.quantum;
  format.special = plan.non_finite;
  format.digits = plan.cell_words - (plan.non_finite ? 1 : 0);
  format.digit_bits = 63 - ceil_log2(plan.contributors);
  return format;
}

}  // namespace exact

std::vector<uint8_t> SnapshotPlan::serialize() const {
  Writer writer;
  writer.put(kPlanVersion)
      .put(static_cast<uint8_t>(dense ? 0 : 1))
      .put(static_cast<uint8_t>(dtype));
  writer.put(static_cast<uint8_t>(non_finite ? 1 : 0)).put(uint8_t{0});
  writer.put(count).put(seed).put(capacity).put(cells).put(contributors).put(cell_words);
  writer.put(quantum).put(top).put(hashes).put(starts).put(chunks).put(table_rows);
  return writer.take();
}

Result<SnapshotPlan> SnapshotPlan::parse(std::span<const uint8_t> bytes) {
  if (bytes.size() != kPlanBytes) return malformed("it is not 72 bytes long");
  Reader reader(bytes);
  uint32_t version = 0;
  uint8_t codec = 0, type = 0, special = 0, zero = 0;
  SnapshotPlan plan;
  reader.get(&version);
  if (version != kPlanVersion) {
    return malformed("version " + std::to_string(version) + ", but this build reads version " +
                     std::to_string(kPlanVersion) + ": pack the gradients again");
  }
  reader.get(&codec);
  reader.get(&type);
  reader.get(&special);
  reader.get(&zero);
  reader.get(&plan.count);
  reader.get(&plan.seed);
  reader.get(&plan.capacity);
  reader.get(&plan.cells);
  reader.get(&plan.contributors);
  reader.get(&plan.cell_words);
  reader.get(&plan.quantum);
  reader.get(&plan.top);
  reader.get(&plan.hashes);
  reader.get(&plan.starts);
  reader.get(&plan.chunks);
  reader.get(&plan.table_rows);
  if (codec > 1 || type > static_cast<uint8_t>(DType::kF16) || special > 1 || zero != 0) {
    return malformed("unknown codec, element type or flag");
  }
  plan.dense = codec == 0;
  plan.dtype = static_cast<DType>(type);
  plan.non_finite = special == 1;
  if (plan.count > kMaxCount) return malformed("more than 2^56 elements");
  if (plan.contributors == 0 || plan.contributors > exact::kMaxWorld) {
    return malformed("the number of contributors is not between 1 and 2^20");
  }
  ADDEND_TRY(plan.dense ? check_dense(plan) : check_sketch(plan));
  return plan;
}

}  // namespace addend
