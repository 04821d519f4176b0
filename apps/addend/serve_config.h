// SPDX-License-Identifier: Apache-2.0
// The server's configuration file (TOML); docs/service.md lists its keys.
#pragma once

#include <string>

#include "addend/result.h"
#include "addend/service.h"
#include "apps/addend/key_file.h"

namespace addend::cli {

struct ServeConfig {
  ServerOptions server;
  double drain_s = 0;   ///< how long SIGTERM waits for workers before it ends jobs; 0: jobs go on
  std::string user;     ///< whom to become once sockets are open; "": nobody else
  bool seccomp = true;  ///< give up all system calls that a running server does not need
  bool json_log = false;
  std::string log_level = "info";
};

/// What the user typed.
struct ServeOptions {
  std::string config_file;
  std::string state_folder;
  std::string key_file;
  std::string address;
  uint16_t port = 7700;
  uint32_t threads = 1;
  std::string xdp_interface;
  UpstreamOptions upstream;
  std::string upstream_key_file;
  std::string switch_folder;
  SwitchOptions in_switch;
};

/// HTTP is so many ports above the control plane where no file says where.
inline constexpr int kHttpAbove = 80;

/// From the file, or without one from the rest. A key that is not known, a wrong type or a number
/// out of range is an error that names it. Certificates come as PEM, not as paths.
Result<ServeConfig> make_config(const ServeOptions& options, const ReadFile& read);

}  // namespace addend::cli
