// SPDX-License-Identifier: Apache-2.0
// Whole files in and out. Every message starts with the path.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "addend/result.h"

namespace addend::file {

/// Reads a regular file or a pipe to its end.
Result<std::vector<uint8_t>> read_whole(const std::string& path);

/// Makes `path` hold the concatenation of `parts`, or leaves the directory as it was: the bytes go
/// to a temporary file in the same directory, are synced, and the file is renamed. Refuses to
/// replace anything but a regular file.
Status write_atomically(const std::string& path, std::span<const std::span<const uint8_t>> parts);

/// The same error, saying which file it is about.
Error at_path(const std::string& path, const Error& error);

}  // namespace addend::file
