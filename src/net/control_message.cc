// SPDX-License-Identifier: Apache-2.0
#include "net/control_message.h"

#include <algorithm>
#include <bit>
#include <optional>

namespace addend::net {
namespace {

static_assert(std::endian::native == std::endian::little, "control messages are little endian");

struct Layout {
  std::size_t bytes;
  bool has_numbers;
};

std::optional<Layout> layout_of(uint16_t type) {
  switch (type) {
    case ADDEND_CONTROL_JOIN:
      return Layout{sizeof(addend_control_join), true};
    case ADDEND_CONTROL_WELCOME:
      return Layout{sizeof(addend_control_welcome), true};
    case ADDEND_CONTROL_TABLE:
      return Layout{sizeof(addend_control_table), false};
    case ADDEND_CONTROL_CREATE:
      return Layout{sizeof(addend_control_job), false};
    case ADDEND_CONTROL_DRAIN:
      return Layout{sizeof(addend_control_drain), false};
    case ADDEND_CONTROL_TABLE_IS:
      return Layout{sizeof(addend_control_number), false};
    case ADDEND_CONTROL_ENDED:
      return Layout{sizeof(addend_control_ended), false};
    case ADDEND_CONTROL_FAILED:
      return Layout{sizeof(addend_control_failed), false};
    case ADDEND_CONTROL_JOB:
      return Layout{sizeof(addend_control_status), false};
    case ADDEND_CONTROL_PROBE:
      return Layout{sizeof(addend_control_probe), false};
    case ADDEND_CONTROL_PATH:
      return Layout{sizeof(addend_control_path), false};
    case ADDEND_CONTROL_LEAVE:
    case ADDEND_CONTROL_LIST:
    case ADDEND_CONTROL_DONE:
      return Layout{0, false};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<uint32_t> ControlMessage::numbers() const {
  std::vector<uint32_t> values(words.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), words.data(), values.size() * 4);
  return values;
}

Result<std::size_t> parse_control(std::span<const uint8_t> bytes, ControlMessage& message) {
  addend_control_header header;
  if (bytes.size() < sizeof(header)) return std::size_t{0};
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != ADDEND_CONTROL_VERSION) {
    return make_error(Errc::kMalformed, "a control message of another version");
  }
  const auto layout = layout_of(header.type);
  if (!layout) return make_error(Errc::kMalformed, "a control message of an unknown type");
  const std::size_t rest = header.bytes - layout->bytes;
  const bool fits = layout->has_numbers ? header.bytes >= layout->bytes && rest % 4 == 0 &&
                                              rest / 4 <= ADDEND_CONTROL_MAX_SLOTS
                                        : header.bytes == layout->bytes;
  if (!fits) return make_error(Errc::kMalformed, "a control message of a wrong length");
  if (bytes.size() < sizeof(header) + header.bytes) return std::size_t{0};
  message.type = static_cast<addend_control_type>(header.type);
  message.body = bytes.subspan(sizeof(header), layout->bytes);
  message.words = bytes.subspan(sizeof(header) + layout->bytes, rest);
  return sizeof(header) + header.bytes;
}

void append_control(std::vector<uint8_t>& to, addend_control_type type,
                    std::span<const uint8_t> body, std::span<const uint32_t> numbers) {
  const addend_control_header header{static_cast<uint32_t>(body.size() + numbers.size() * 4),
                                     static_cast<uint16_t>(type), ADDEND_CONTROL_VERSION};
  const auto* front = reinterpret_cast<const uint8_t*>(&header);
  to.insert(to.end(), front, front + sizeof(header));
  to.insert(to.end(), body.begin(), body.end());
  const auto* row = reinterpret_cast<const uint8_t*>(numbers.data());
  to.insert(to.end(), row, row + numbers.size() * 4);
}

void put_text(std::span<char> field, std::string_view text) {
  std::fill(field.begin(), field.end(), '\0');
  const std::size_t bytes = std::min(text.size(), field.size() - 1);
  std::copy_n(text.begin(), bytes, field.begin());
}

std::string get_text(std::span<const char> field) {
  return {field.begin(), std::find(field.begin(), field.end(), '\0')};
}

}  // namespace addend::net
