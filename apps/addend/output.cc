// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/output.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace addend::cli {

Status check_output(const std::string& path, Overwrite overwrite) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  if (overwrite == Overwrite::kRefuse && std::filesystem::exists(status)) {
    return make_error(Errc::kInvalidArgument, path + ": exists; --force replaces it");
  }
  return {};
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return make_error(Errc::kIo, path + ": cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << '\n';
  file.close();
  if (!file) return make_error(Errc::kIo, "cannot write " + path);
  return {};
}

std::string format_shape(const std::vector<uint64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

FileProgress::FileProgress(std::string verb, std::size_t total)
    : verb_(std::move(verb)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {}

FileProgress::~FileProgress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

void FileProgress::step(const std::string& name) {
  ++steps_;
  constexpr auto kPatience = std::chrono::milliseconds(500);
  if (!terminal_ || std::chrono::steady_clock::now() - start_ < kPatience) return;
  fmt::print(stderr, "\r\x1b[K{} {}/{}: {}", verb_, steps_, total_,
             std::filesystem::path(name).filename().string());
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace addend::cli
