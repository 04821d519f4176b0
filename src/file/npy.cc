// SPDX-License-Identifier: Apache-2.0
// A .npy file: magic, version (major, minor), header length (u16 before version 2, then u32),
// header text padded with spaces, elements.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "addend/file.h"
#include "file/io.h"
#include "file/npy_header.h"
#include "file/shape.h"

namespace addend {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they are stored");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kVersionAt = 6;
constexpr std::size_t kLengthAt = 8;
/// NumPy aligns the elements so that they can be mapped.
constexpr std::size_t kAlignment = 64;

struct Sections {
  std::string_view header;
  std::span<const uint8_t> elements;
};

Error truncated() { return make_error(Errc::kMalformed, "truncated .npy file"); }

Result<Sections> split(std::span<const uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t seen = std::min(text.size(), kMagic.size());
  if (text.substr(0, seen) != kMagic.substr(0, seen)) {
    return make_error(Errc::kMalformed, "not a .npy file");
  }
  if (bytes.size() < kLengthAt) return truncated();
  const unsigned major = bytes[kVersionAt];
  const unsigned minor = bytes[kVersionAt + 1];
  if (major < 1 || major > 3 || minor != 0) {
    return make_error(Errc::kMalformed, "unknown .npy version " + std::to_string(major) + "." +
                                            std::to_string(minor));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t header_at = kLengthAt + length_bytes;
  if (bytes.size() < header_at) return truncated();
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + kLengthAt, length_bytes);
  if (length > bytes.size() - header_at) return truncated();
  return Sections{text.substr(header_at, length), bytes.subspan(header_at + length)};
}

/// Checks the header against the bytes that exist, so that no size in it is believed before.
Result<uint64_t> checked_count(const file::NpyHeader& header, uint64_t element_bytes) {
  if (header.fortran_order && header.shape.size() > 1) {
    return make_error(Errc::kUnsupported,
                      "Fortran order: save numpy.ascontiguousarray(array) instead");
  }
  const std::optional<uint64_t> count = file::element_count(header.shape);
  const uint64_t width = dtype_bytes(header.dtype);
  if (!count || *count > element_bytes / width) {
    return make_error(Errc::kMalformed,
                      "truncated .npy file: its shape says more elements than "
                      "follow");
  }
  if (*count * width != element_bytes) {
    return make_error(Errc::kMalformed, "corrupted .npy file: bytes follow the last element");
  }
  return *count;
}

std::string preamble(const NpyArray& array) {
  std::string text = file::format_npy_header(array.dtype, array.shape);
  const std::size_t fixed = kLengthAt + 2;
  const std::size_t unpadded = fixed + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  // At most 64 dimensions of 20 digits: far below the 64 KiB of version 1.
  const auto length = static_cast<uint16_t>(text.size());
  std::string out(kMagic);
  out += {'\x01', '\x00', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  return out + text;
}

}  // namespace

Result<NpyArray> parse_npy(std::span<const uint8_t> bytes) {
  auto sections = split(bytes);
  if (!sections) return sections.error();
  auto header = file::parse_npy_header(sections->header);
  if (!header) return header.error();
  auto count = checked_count(*header, sections->elements.size());
  if (!count) return count.error();
  NpyArray array;
  array.dtype = header->dtype;
  array.shape = std::move(header->shape);
  array.count = *count;
  array.storage.resize((sections->elements.size() + 7) / 8);
  if (array.count > 0) {
    std::memcpy(array.data(), sections->elements.data(), sections->elements.size());
  }
  return array;
}

Result<NpyArray> read_npy(const std::string& path) {
  auto bytes = file::read_whole(path);
  if (!bytes) return bytes.error();
  auto array = parse_npy(*bytes);
  if (!array) return file::at_path(path, array.error());
  return array;
}

Status write_npy(const std::string& path, const NpyArray& array) {
  const uint64_t room = array.storage.size() * sizeof(uint64_t) / dtype_bytes(array.dtype);
  if (array.shape.size() > file::kMaxDims || file::element_count(array.shape) != array.count ||
      array.count > room) {
    return make_error(Errc::kInvalidArgument,
                      path + ": shape, count and storage of the array disagree");
  }
  const std::string head = preamble(array);
  const std::array<std::span<const uint8_t>, 2> parts = {
      std::span(reinterpret_cast<const uint8_t*>(head.data()), head.size()),
      std::span(static_cast<const uint8_t*>(array.data()), array.count * dtype_bytes(array.dtype))};
  return file::write_atomically(path, parts);
}

}  // namespace addend
