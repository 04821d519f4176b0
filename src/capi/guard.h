// SPDX-License-Identifier: Apache-2.0
// What every entry point of the C ABI is wrapped in: an Error becomes a status and a thread's last
// message, and no exception escapes (only allocation throws).
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "addend/addend.h"
#include "addend/result.h"

namespace addend::capi {

static_assert(static_cast<int>(Errc::kChanged) == ADDEND_CHANGED);

inline thread_local std::string t_last_error;

inline addend_status fail(const Error& error) {
  t_last_error = error.message;
  return static_cast<addend_status>(error.code);
}
inline addend_status invalid(const char* message) {
  return fail(make_error(Errc::kInvalidArgument, message));
}
inline addend_status to_status(const Status& status) {
  return status ? ADDEND_OK : fail(status.error());
}

/// Of a status that a caller says, or its function returned.
inline Error error_of(addend_status status, std::string message) {
  const bool known = status > ADDEND_OK && status <= ADDEND_CHANGED;
  return make_error(known ? static_cast<Errc>(status) : Errc::kUnavailable, std::move(message));
}

/// Runs a body that returns addend_status; nothing may escape into C.
template <typename Body>
addend_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(make_error(Errc::kOutOfMemory, "out of memory"));
  } catch (const std::exception& error) {
    return fail(make_error(Errc::kUnavailable, error.what()));
  }
}

inline bool is_op(addend_op op) { return static_cast<unsigned>(op) < ADDEND_OP_COUNT; }

}  // namespace addend::capi
