// SPDX-License-Identifier: Apache-2.0
// Errors as values. Member names follow std::expected so that this can become an alias when the
// toolchains allow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace addend {

/// Why a call failed. The numbers are the C ABI's status codes (addend.h), 0 being success.
enum class Errc : uint8_t {
  kInvalidArgument = 1,  ///< the caller's input is wrong; nothing was changed
  kMalformed = 2,  ///< bytes that claim to be ours are truncated, corrupt or of an unknown version
  kUndecodable = 3,  ///< a sum that should be consistent is not: an adder lost or altered something
  kCapacity = 4,     ///< more non-zeros, range or contributors than the plan was made for
  kMismatch = 5,     ///< workers (or files) do not share one plan
  kTimeout = 6,      ///< a deadline passed; the message names who is missing where that is known
  kUnavailable =
      7,    ///< a peer, an earlier failure or a missing part of the machine stands in the way
  kIo = 8,  ///< the operating system refused
  kUnsupported = 9,   ///< refused by name: this build or backend does not do that
  kOutOfMemory = 10,  ///< an allocation failed
  kChanged = 11,      ///< workers came or went during a step: all begin it again
};

/// The code's name as written in messages, logs and Python exceptions.
constexpr const char* errc_name(Errc code) {
  constexpr const char* kNames[] = {"ok",       "invalid_argument", "malformed",     "undecodable",
                                    "capacity", "mismatch",         "timeout",       "unavailable",
                                    "io",       "unsupported",      "out_of_memory", "changed"};
  return kNames[static_cast<uint8_t>(code)];
}

struct Error {
  Errc code;
  std::string message;
};

/// A value or an Error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // implicit: return either
  Result(Error error) : state_(std::move(error)) {}  // implicit: return either

  bool has_value() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return has_value(); }
  /// REQUIRES: has_value().
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  /// REQUIRES: !has_value().
  const Error& error() const { return std::get<Error>(state_); }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // implicit: return either

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

inline Error make_error(Errc code, std::string message) { return Error{code, std::move(message)}; }

}  // namespace addend

/// Returns the error of an expression that yields a Result (or of a Result variable), if it has
/// one.
#define ADDEND_TRY(expression)                                                       \
  do {                                                                               \
    if (auto&& addend_try_ = (expression); !addend_try_) return addend_try_.error(); \
  } while (false)
