// SPDX-License-Identifier: Apache-2.0
// The files of a server: its configuration with all that it names, and its saved jobs. Another
// process reads and writes them, so that the server itself can give up the right to.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "apps/addend/file_process.h"
#include "apps/addend/serve_config.h"

namespace addend::cli {

/// Any thread.
class ServeFiles {
 public:
  /// Forks. REQUIRES: this process has one thread.
  static Result<std::unique_ptr<ServeFiles>> start(const ServeOptions& options);

  /// As the files are now.
  Result<ServeConfig> config();
  /// What was saved last; empty if nothing was, or there is no --state-dir.
  Result<std::vector<uint8_t>> state();
  Status save(std::span<const uint8_t> state);
  /// What the switch has to know, under --switch.
  Status publish(std::span<const uint8_t> jobs);

 private:
  ServeFiles(ServeOptions options, std::unique_ptr<FileProcess> process)
      : options_(std::move(options)), process_(std::move(process)) {}
  ServeOptions options_;
  std::unique_ptr<FileProcess> process_;
};

}  // namespace addend::cli
