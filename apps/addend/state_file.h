// SPDX-License-Identifier: Apache-2.0
// The file under --state-dir in which a server keeps its jobs: there as a whole, the old one or the
// new one, whatever happens while it is written.
#pragma once

#include <string>

#include "addend/result.h"

namespace addend::cli {

/// One server's; only its user may read it.
class StateFile {
 public:
  /// Makes the folder if need be. Waits a moment for a server that is just going; kUnavailable if
  /// one stays.
  static Result<StateFile> open(const std::string& folder);
  ~StateFile();
  StateFile(StateFile&& other) noexcept;
  StateFile& operator=(StateFile&&) = delete;

  const std::string& path() const { return path_; }
  /// "" if there is none.
  Result<std::string> read() const;
  Status write(const std::string& bytes) const;

 private:
  StateFile(std::string folder, int fd);
  std::string path_;
  int folder_;  // locked
};

}  // namespace addend::cli
