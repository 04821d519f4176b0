// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/progress.h"

#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

namespace addend::cli {

namespace {

constexpr const char* kClearLine = "\r\x1b[K";

}  // namespace

Progress::Progress(std::size_t stages) : terminal_(isatty(STDERR_FILENO) != 0), stages_(stages) {}

Progress::~Progress() { clear(); }

void Progress::stage(const std::string& text) {
  ++current_;
  stage_ = fmt::format("[{:>{}}/{}] {}", current_, std::to_string(stages_).size(), stages_, text);
  show(stage_);
}

void Progress::detail(const std::string& text) {
  if (terminal_) show(stage_ + ": " + text);
}

void Progress::clear() {
  if (terminal_) fmt::print(stderr, "{}", kClearLine);
}

void Progress::show(const std::string& text) {
  if (terminal_) {
    fmt::print(stderr, "{}{}", kClearLine, text);
  } else {
    fmt::print(stderr, "{}\n", text);
  }
  std::fflush(stderr);
}

}  // namespace addend::cli
