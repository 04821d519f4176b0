// SPDX-License-Identifier: Apache-2.0
// Pre-shared keys as files: 64 hexadecimal digits, readable by their owner only. And the options
// with which commands say how to reach a server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "addend/access.h"
#include "addend/result.h"

namespace addend::cli {

enum class Privacy : uint8_t { kPublic, kPrivate };
/// A private file is refused if others may read it. One in $CREDENTIALS_DIRECTORY may be readable
/// by its group, as systemd makes it.
Result<std::string> read_file(const std::string& path, Privacy privacy);
/// read_file, or another way to have what it would give.
using ReadFile = std::function<Result<std::string>(const std::string& path, Privacy privacy)>;

Result<ServiceKey> read_key_file(const std::string& path, const ReadFile& read = read_file);
/// Refuses to replace a file.
Status write_key_file(const std::string& path, const ServiceKey& key);

/// What the user typed.
struct AccessOptions {
  std::string aggregator = "127.0.0.1:7700";
  std::string identity = "default";
  std::string key_file;
  ServiceCertificates certificates;
};

void add_access_options(CLI::App& command, AccessOptions& options);
Result<ServiceAccess> make_access(const AccessOptions& options);

}  // namespace addend::cli
