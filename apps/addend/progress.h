// SPDX-License-Identifier: Apache-2.0
// A status line on stderr while a long job runs: one line that is rewritten on a terminal, one line
// a stage elsewhere.
#pragma once

#include <cstddef>
#include <string>

namespace addend::cli {

/// One thread at a time.
class Progress {
 public:
  explicit Progress(std::size_t stages);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Begins the next stage.
  void stage(const std::string& text);
  /// What the stage is doing; only shown on a terminal.
  void detail(const std::string& text);
  /// Takes the status line off the terminal, to make room for other output.
  void clear();

 private:
  void show(const std::string& text);

  bool terminal_;
  std::size_t stages_;
  std::size_t current_ = 0;
  std::string stage_;
};

}  // namespace addend::cli
