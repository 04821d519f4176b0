// SPDX-License-Identifier: Apache-2.0
// Reads and writes the container that wire/add_file.h draws. What the parser accepts, the writer
// reproduces byte for byte: there is one encoding of a file's contents.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "addend/file.h"
#include "base/assert.h"
#include "file/io.h"
#include "file/shape.h"
#include "wire/add_file.h"

namespace addend {
namespace {

using Header = addend_add_file_header;
using PlaneEntry = addend_add_file_plane;
using Bytes = std::span<const uint8_t>;

static_assert(std::endian::native == std::endian::little, "structs are copied as they are stored");
static_assert(sizeof(Header) == 48 && sizeof(PlaneEntry) == 16);
static_assert(Round::kMaxPlanes == ADDEND_ADD_FILE_MAX_PLANES);

constexpr std::array<uint8_t, ADDEND_ADD_FILE_ALIGNMENT> kZeros{};

Error malformed(const std::string& what) { return make_error(Errc::kMalformed, what); }

Error truncated(uint64_t have, uint64_t need) {
  return malformed("truncated .add file: " + std::to_string(have) + " bytes of " +
                   std::to_string(need));
}

uint64_t padding(uint64_t bytes) { return -bytes % ADDEND_ADD_FILE_ALIGNMENT; }

/// Hands out the file from front to back. Lengths come from the file: nothing is believed beyond
/// the bytes that exist.
class Reader {
 public:
  explicit Reader(Bytes bytes) : rest_(bytes) {}

  std::size_t left() const { return rest_.size(); }

  std::optional<Bytes> take(uint64_t bytes) {
    if (bytes > rest_.size()) return std::nullopt;
    const Bytes taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }

  /// REQUIRES: bytes <= 2^63.
  std::optional<Bytes> take_padded(uint64_t bytes) {
    const std::optional<Bytes> taken = take(bytes + padding(bytes));
    if (!taken) return std::nullopt;
    const std::size_t pad = padding(bytes);
    if (pad > 0 && std::memcmp(taken->data() + bytes, kZeros.data(), pad) != 0) return std::nullopt;
    return taken->first(bytes);
  }

  template <typename T>
  bool read(T& value) {
    const std::optional<Bytes> taken = take(sizeof(T));
    if (taken) std::memcpy(&value, taken->data(), sizeof(T));
    return taken.has_value();
  }

 private:
  Bytes rest_;
};

/// Checks everything that decides whether the rest may be looked at: what it is, that it is whole,
/// that it is intact.
Result<Header> checked_header(Bytes bytes) {
  const std::size_t seen = std::min<std::size_t>(bytes.size(), ADDEND_ADD_FILE_MAGIC_BYTES);
  if (seen > 0 && std::memcmp(bytes.data(), ADDEND_ADD_FILE_MAGIC, seen) != 0) {
    return malformed("not an .add file");
  }
  constexpr std::size_t kSmallest = sizeof(Header) + ADDEND_ADD_FILE_CHECKSUM_BYTES;
  if (bytes.size() < kSmallest) return truncated(bytes.size(), kSmallest);
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.version != ADDEND_ADD_FILE_VERSION) {
    return malformed("unknown version " + std::to_string(header.version) +
                     " of the .add format; this build reads version " +
                     std::to_string(ADDEND_ADD_FILE_VERSION));
  }
  if (header.file_bytes > bytes.size()) return truncated(bytes.size(), header.file_bytes);
  if (header.file_bytes < bytes.size()) {
    return malformed("corrupted .add file: bytes follow its end");
  }
  const Bytes body = bytes.first(bytes.size() - ADDEND_ADD_FILE_CHECKSUM_BYTES);
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + body.size(), sizeof(checksum));
  if (XXH3_64bits(body.data(), body.size()) != checksum) {
    return malformed("corrupted .add file: its checksum does not match its contents");
  }
  if (header.flags != 0 || header.reserved != 0) {
    return malformed("unknown flags in the .add file: a newer version wrote it");
  }
  if (header.contributors == 0 || header.contributors > header.max_contributors) {
    return malformed("corrupted .add file: impossible number of contributors");
  }
  return header;
}

Status read_shape(Reader& reader, const Header& header, AddFile& file) {
  if (header.dims > file::kMaxDims) return malformed("corrupted .add file: too many dimensions");
  file.shape.resize(header.dims);
  for (uint64_t& dim : file.shape) {
    if (!reader.read(dim)) return malformed("corrupted .add file: its shape does not fit");
  }
  if (!file::element_count(file.shape)) {
    return malformed("corrupted .add file: its shape overflows");
  }
  return {};
}

Result<Plane> read_plane_entry(Reader& reader) {
  PlaneEntry entry;
  if (!reader.read(entry)) return malformed("corrupted .add file: its plane table does not fit");
  const auto op = static_cast<Op>(entry.op);
  if (entry.op >= kOpCount || is_table_sum(op) || entry.reserved != 0) {
    return malformed("corrupted .add file: a plane has no operation that files can be added with");
  }
  // A lane is at least a byte, so this also keeps the byte count below from overflowing.
  if (entry.lanes > reader.left()) {
    return malformed("corrupted .add file: a plane is longer than the file");
  }
  Plane plane;
  plane.op = op;
  plane.lanes = entry.lanes;
  return plane;
}

Status read_payload(Reader& reader, Plane& plane, AddFile& file) {
  const uint64_t bytes = op_bytes(plane.op, plane.lanes);
  const std::optional<Bytes> payload = reader.take_padded(bytes);
  if (!payload) return malformed("corrupted .add file: a plane does not fit");
  std::vector<uint64_t>& storage =
      file.storage.emplace_back((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  if (bytes > 0) std::memcpy(storage.data(), payload->data(), bytes);
  plane.data = storage.data();
  return {};
}

/// A file as a list of parts: planes are written from where they are.
class Encoding {
 public:
  explicit Encoding(const AddFile& file) {
    const uint64_t head_bytes = sizeof(Header) + file.shape.size() * sizeof(uint64_t) +
                                file.planes.size * sizeof(PlaneEntry) + file.plan.size() +
                                padding(file.plan.size());
    uint64_t file_bytes = head_bytes + ADDEND_ADD_FILE_CHECKSUM_BYTES;
    for (const Plane& plane : file.planes) {
      const uint64_t bytes = op_bytes(plane.op, plane.lanes);
      file_bytes += bytes + padding(bytes);
    }
    head_.resize(head_bytes);
    write_head(file, file_bytes);
    parts_.emplace_back(head_);
    for (const Plane& plane : file.planes) {
      const uint64_t bytes = op_bytes(plane.op, plane.lanes);
      parts_.emplace_back(static_cast<const uint8_t*>(plane.data), bytes);
      parts_.emplace_back(kZeros.data(), padding(bytes));
    }
    append_checksum();
  }
  // The parts point into the object.
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  std::span<const Bytes> parts() const { return parts_; }

 private:
  void append(const void* data, std::size_t bytes) {
    ADDEND_ASSERT(bytes <= head_.size() - written_);
    if (bytes > 0) std::memcpy(head_.data() + written_, data, bytes);
    written_ += bytes;
  }

  void write_head(const AddFile& file, uint64_t file_bytes) {
    Header header = {};
    std::memcpy(header.magic, ADDEND_ADD_FILE_MAGIC, ADDEND_ADD_FILE_MAGIC_BYTES);
    header.version = ADDEND_ADD_FILE_VERSION;
    header.file_bytes = file_bytes;
    header.contributors = file.contributors;
    header.max_contributors = file.max_contributors;
    header.plan_bytes = static_cast<uint32_t>(file.plan.size());
    header.dims = static_cast<uint32_t>(file.shape.size());
    header.planes = static_cast<uint32_t>(file.planes.size);
    append(&header, sizeof(header));
    append(file.shape.data(), file.shape.size() * sizeof(uint64_t));
    for (const Plane& plane : file.planes) {
      const PlaneEntry entry = {static_cast<uint32_t>(plane.op), 0, plane.lanes};
      append(&entry, sizeof(entry));
    }
    append(file.plan.data(), file.plan.size());
    append(kZeros.data(), padding(file.plan.size()));
    ADDEND_ASSERT(written_ == head_.size());
  }

  void append_checksum() {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (const Bytes part : parts_)
      XXH3_64bits_update(&state, part.data(), part.size());
    const uint64_t checksum = XXH3_64bits_digest(&state);
    std::memcpy(checksum_.data(), &checksum, sizeof(checksum));
    parts_.emplace_back(checksum_);
  }

  std::vector<uint8_t> head_;
  std::size_t written_ = 0;  // of the head
  std::array<uint8_t, ADDEND_ADD_FILE_CHECKSUM_BYTES> checksum_{};
  std::vector<Bytes> parts_;
};

bool is_writable(const AddFile& file) {
  for (const Plane& plane : file.planes) {
    if (is_table_sum(plane.op) || (plane.lanes > 0 && plane.data == nullptr)) return false;
  }
  return file.contributors > 0 && file.contributors <= file.max_contributors &&
         file.shape.size() <= file::kMaxDims && file::element_count(file.shape).has_value() &&
         file.plan.size() <= std::numeric_limits<uint32_t>::max();
}

}  // namespace

Result<AddFile> parse_add_file(std::span<const uint8_t> bytes) {
  auto header = checked_header(bytes);
  if (!header) return header.error();
  Reader reader(bytes.first(bytes.size() - ADDEND_ADD_FILE_CHECKSUM_BYTES));
  reader.take(sizeof(Header));
  AddFile file;
  file.contributors = header->contributors;
  file.max_contributors = header->max_contributors;
  ADDEND_TRY(read_shape(reader, *header, file));
  if (header->planes > Round::kMaxPlanes) {
    return malformed("corrupted .add file: too many planes");
  }
  for (uint32_t i = 0; i < header->planes; ++i) {
    auto plane = read_plane_entry(reader);
    if (!plane) return plane.error();
    file.planes.add(*plane);
  }
  const std::optional<Bytes> plan = reader.take_padded(header->plan_bytes);
  if (!plan) return malformed("corrupted .add file: its plan does not fit");
  file.plan.assign(plan->begin(), plan->end());
  for (Plane& plane : file.planes)
    ADDEND_TRY(read_payload(reader, plane, file));
  if (reader.left() > 0) return malformed("corrupted .add file: bytes follow the last plane");
  return file;
}

Result<AddFile> read_add_file(const std::string& path) {
  auto bytes = file::read_whole(path);
  if (!bytes) return bytes.error();
  auto file = parse_add_file(*bytes);
  if (!file) return file::at_path(path, file.error());
  return file;
}

std::vector<uint8_t> serialize_add_file(const AddFile& file) {
  const Encoding encoding(file);
  std::vector<uint8_t> bytes;
  for (const Bytes part : encoding.parts())
    bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

Status write_add_file(const std::string& path, const AddFile& file) {
  if (!is_writable(file)) {
    return make_error(Errc::kInvalidArgument,
                      path + ": shape, planes or contributors cannot be stored");
  }
  const Encoding encoding(file);
  return file::write_atomically(path, encoding.parts());
}

}  // namespace addend
