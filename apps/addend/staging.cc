// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/staging.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace addend::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kReplaced = ".replaced";

}  // namespace

Result<Staging> Staging::create(const std::string& output_directory) {
  std::error_code error;
  const bool made_output = fs::create_directories(output_directory, error);
  if (error) {
    return make_error(Errc::kIo,
                      output_directory + ": cannot create the directory: " + error.message());
  }
  std::string hidden = (fs::path(output_directory) / ".addend-XXXXXX").string();
  if (mkdtemp(hidden.data()) == nullptr) {
    error = std::error_code(errno, std::generic_category());
    return make_error(Errc::kIo, output_directory + ": cannot write there: " + error.message());
  }
  return Staging(output_directory, hidden, made_output);
}

Staging::Staging(fs::path output, fs::path hidden, bool made_output)
    : output_(std::move(output)), hidden_(std::move(hidden)), made_output_(made_output) {}

Staging::Staging(Staging&& other) noexcept
    : output_(std::exchange(other.output_, {})),
      hidden_(std::exchange(other.hidden_, {})),
      made_output_(std::exchange(other.made_output_, false)) {}

Staging::~Staging() {
  std::error_code ignored;
  if (!hidden_.empty()) fs::remove_all(hidden_, ignored);
  // Removes only an empty directory.
  if (made_output_) fs::remove(output_, ignored);
}

// A file that is replaced keeps a second name in the staging directory, so that its place is never
// empty, and goes when that directory does. Where the file system has no second names, it moves.
Status Staging::publish_one(const std::string& name) {
  const fs::path target = output_ / name;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target, error);
  if (fs::exists(status) && !fs::is_directory(status)) {
    fs::create_hard_link(target, hidden_ / (name + kReplaced), error);
    if (error) fs::rename(target, hidden_ / (name + kReplaced), error);
  }
  fs::rename(hidden_ / name, target, error);
  if (!error) return {};
  const std::string message = error.message();
  take_back(name);
  return make_error(Errc::kIo, target.string() + ": cannot move into place: " + message);
}

void Staging::take_back(const std::string& name) {
  const fs::path target = output_ / name, replaced = hidden_ / (name + kReplaced);
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(replaced, ignored))) {
    fs::rename(replaced, target, ignored);
  } else if (!fs::exists(hidden_ / name, ignored)) {
    fs::remove(target, ignored);
  }
}

Status Staging::publish(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    Status status = publish_one(names[i]);
    if (status) continue;
    for (std::size_t j = i; j-- > 0;)
      take_back(names[j]);
    return status;
  }
  return {};
}

}  // namespace addend::cli
