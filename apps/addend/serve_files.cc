// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/serve_files.h"

#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "apps/addend/state_file.h"

namespace addend::cli {
namespace {

// Requests to the other process: one character, and the bytes to be written.
constexpr char kConfig = 'c', kState = 's', kSave = 'w', kPublish = 'p';

using Files = std::map<std::string, std::string>;

// What the other process does with them.
class FileRequests {
 public:
  explicit FileRequests(ServeOptions options) : options_(std::move(options)) {}

  Result<std::string> work(const std::string& request) {
    switch (request.front()) {
      case kConfig:
        return read_config();
      case kState:
        return read_state();
      case kPublish:
        return write_jobs(request.substr(1));
      default:
        return write_state(request.substr(1));
    }
  }

 private:
  // All files that a good configuration consists of. Reading it is the way to know them.
  Result<std::string> read_config() const {
    Files files;
    const auto config = make_config(options_, [&](const std::string& path, Privacy privacy) {
      auto text = read_file(path, privacy);
      if (text) files[path] = *text;
      return text;
    });
    if (!config) return config.error();
    std::string packed;
    nlohmann::json::to_msgpack(nlohmann::json(files), packed);
    return packed;
  }

  Result<std::string> read_state() {
    if (options_.state_folder.empty()) return std::string();
    auto file = StateFile::open(options_.state_folder);
    if (!file) return file.error();
    state_.emplace(*std::move(file));
    return state_->read();
  }

  Result<std::string> write_state(const std::string& bytes) const {
    if (!state_) return make_error(Errc::kInvalidArgument, "there is no --state-dir");
    ADDEND_TRY(state_->write(bytes));
    return std::string();
  }

  Result<std::string> write_jobs(const std::string& text) {
    if (!switch_) {
      auto file = StateFile::open(options_.switch_folder);
      if (!file) return file.error();
      switch_.emplace(*std::move(file));
    }
    ADDEND_TRY(switch_->write(text));
    return std::string();
  }

  ServeOptions options_;
  std::optional<StateFile> state_, switch_;
};

}  // namespace

Result<std::unique_ptr<ServeFiles>> ServeFiles::start(const ServeOptions& options) {
  const auto requests = std::make_shared<FileRequests>(options);
  auto process = FileProcess::start(
      [requests](const std::string& request) { return requests->work(request); });
  if (!process) return process.error();
  return std::unique_ptr<ServeFiles>(new ServeFiles(options, *std::move(process)));
}

Result<ServeConfig> ServeFiles::config() {
  const auto packed = process_->ask(std::string(1, kConfig));
  if (!packed) return packed.error();
  const auto files = nlohmann::json::from_msgpack(*packed).get<Files>();
  return make_config(options_, [&](const std::string& path, Privacy) -> Result<std::string> {
    const auto file = files.find(path);
    if (file == files.end()) return make_error(Errc::kIo, path + ": not read");
    return file->second;
  });
}

Result<std::vector<uint8_t>> ServeFiles::state() {
  const auto bytes = process_->ask(std::string(1, kState));
  if (!bytes) return bytes.error();
  return std::vector<uint8_t>(bytes->begin(), bytes->end());
}

Status ServeFiles::save(std::span<const uint8_t> state) {
  const auto done = process_->ask(kSave + std::string(state.begin(), state.end()));
  return done ? Status{} : Status(done.error());
}

Status ServeFiles::publish(std::span<const uint8_t> jobs) {
  const auto done = process_->ask(kPublish + std::string(jobs.begin(), jobs.end()));
  return done ? Status{} : Status(done.error());
}

}  // namespace addend::cli
