// SPDX-License-Identifier: Apache-2.0
// Control messages (wire/control.h) as bytes: nothing but fixed layouts and a bounded row of
// numbers; nothing is ever made into objects.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "addend/result.h"
#include "wire/control.h"

namespace addend::net {

/// A message inside a buffer of received bytes.
struct ControlMessage {
  addend_control_type type{};
  std::span<const uint8_t> body;   ///< exactly the type's fixed layout
  std::span<const uint8_t> words;  ///< the row of 32-bit numbers behind it, often empty

  /// REQUIRES: T is the layout of `type`.
  template <typename T>
  T as() const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, body.data(), sizeof(T));
    return value;
  }
  std::vector<uint32_t> numbers() const;
};

/// Takes the first message of `bytes`. Returns how many bytes it takes, 0 if it is not whole yet,
/// or kMalformed: unknown type or version, or a length that the type does not have.
Result<std::size_t> parse_control(std::span<const uint8_t> bytes, ControlMessage& message);

void append_control(std::vector<uint8_t>& to, addend_control_type type,
                    std::span<const uint8_t> body = {}, std::span<const uint32_t> numbers = {});

template <typename T>
void append_control(std::vector<uint8_t>& to, addend_control_type type, const T& body,
                    std::span<const uint32_t> numbers =
                        {}) requires(std::is_trivially_copyable_v<T>&& std::is_class_v<T> &&
                                     !std::is_convertible_v<T, std::span<const uint8_t>>) {
  append_control(to, type,
                 std::span<const uint8_t>(reinterpret_cast<const uint8_t*>(&body), sizeof(T)),
                 numbers);
}

/// Text in a field that is filled with zeros; cut if it is too long for it.
void put_text(std::span<char> field, std::string_view text);
std::string get_text(std::span<const char> field);

}  // namespace addend::net
