// SPDX-License-Identifier: Apache-2.0
// Several output files that appear together or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "addend/result.h"

namespace addend::cli {

/// A hidden directory inside the output directory. Files are written there first; publish moves
/// them up. What was not published vanishes with the object, and so does the output directory if it
/// was made for this and stayed empty.
class Staging {
 public:
  static Result<Staging> create(const std::string& output_directory);

  ~Staging();
  Staging(Staging&& other) noexcept;
  Staging& operator=(Staging&&) = delete;

  /// Where to write the file that will be called `name`.
  std::string path(const std::string& name) const { return (hidden_ / name).string(); }

  /// Moves the named files into the output directory. If one cannot be moved, those before it are
  /// taken away again, and the files they had replaced are back.
  Status publish(const std::vector<std::string>& names);

 private:
  Status publish_one(const std::string& name);
  void take_back(const std::string& name);

  Staging(std::filesystem::path output, std::filesystem::path hidden, bool made_output);

  std::filesystem::path output_;
  std::filesystem::path hidden_;
  bool made_output_;
};

}  // namespace addend::cli
