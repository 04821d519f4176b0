// SPDX-License-Identifier: Apache-2.0
// What commands that write files share: they ask before they overwrite, and show where they are.
// And files that are one text.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "addend/result.h"

namespace addend::cli {

/// Whether existing files may be replaced.
enum class Overwrite : uint8_t { kRefuse, kAllow };

/// Refuses a path that exists, unless told otherwise.
Status check_output(const std::string& path, Overwrite overwrite);

/// kIo, with the path, where a file cannot be opened.
Result<std::string> read_text(const std::string& path);
/// Replaces a file by a text and a line end. kIo where that does not work.
Status write_text(const std::string& path, const std::string& text);

/// "(3, 5)", as Python writes it.
std::string format_shape(const std::vector<uint64_t>& shape);

/// A line on stderr that says which of many files is being worked on; gone when the work is.
/// Nothing unless stderr is a terminal and the work has lasted long enough for someone to wonder.
class FileProgress {
 public:
  FileProgress(std::string verb, std::size_t total);
  ~FileProgress();
  FileProgress(const FileProgress&) = delete;
  FileProgress& operator=(const FileProgress&) = delete;

  /// Before work on the next file.
  void step(const std::string& name);

 private:
  std::string verb_;
  std::size_t total_;
  std::size_t steps_ = 0;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace addend::cli
