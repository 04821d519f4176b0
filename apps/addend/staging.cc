// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/staging.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace addend::cli {

namespace fs = std::filesystem;

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

Status Staging::publish(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::error_code error;
    fs::rename(hidden_ / names[i], output_ / names[i], error);
    if (!error) continue;
    std::error_code ignored;
    for (std::size_t j = 0; j < i; ++j)
      fs::remove(output_ / names[j], ignored);
    return make_error(
        Errc::kIo, (output_ / names[i]).string() + ": cannot move into place: " + error.message());
  }
  return {};
}

}  // namespace addend::cli
