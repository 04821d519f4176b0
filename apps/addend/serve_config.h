// SPDX-License-Identifier: Apache-2.0
// The server's configuration file (TOML); docs/service.md lists its keys.
#pragma once

#include <string>

#include "addend/result.h"
#include "addend/service.h"

namespace addend::cli {

struct ServeConfig {
  ServerOptions server;
  double drain_s = 30;  ///< how long SIGTERM waits for workers to leave
  std::string user;     ///< whom to become once sockets are open; "": nobody else
  bool seccomp = true;  ///< give up all system calls that a running server does not need
  bool json_log = false;
  std::string log_level = "info";
};

/// A key that is not known, a wrong type or a number out of range is an error that names it.
Result<ServeConfig> read_serve_config(const std::string& path);

}  // namespace addend::cli
