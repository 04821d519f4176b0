// SPDX-License-Identifier: Apache-2.0
// addend serve: the aggregation server.
#include <chrono>
#include <csignal>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <sys/resource.h>

#include "apps/addend/command.h"
#include "apps/addend/harden.h"
#include "apps/addend/log.h"
#include "apps/addend/serve_config.h"
#include "apps/addend/serve_files.h"

namespace addend::cli {
namespace {

constexpr const char* kFooter =
    "With --config, everything comes from the file (docs/service.md). Without, one tenant named\n"
    "'default' has the key of --key; UDP takes the ports behind --port, and /metrics and a page "
    "are\n"
    "at 127.0.0.1, 80 ports above it.\n"
    "SIGTERM and SIGINT end the server and leave jobs as they are: workers wait for the next one\n"
    "and go on. --state-dir keeps the jobs that 'addend job create' made. With drain_s in the\n"
    "file, jobs end: no new workers, then out when the last one has left or time is up; a second\n"
    "signal ends at once. SIGHUP reads the files again: tenants, keys, limits, certificates. A\n"
    "mistake in them is logged, and all stays as it was.\n\n"
    "Examples:\n"
    "  addend keygen lab.key && addend serve --key lab.key\n"
    "  addend serve --config /etc/addend/serve.toml --state-dir /var/lib/addend\n"
    "  addend serve --key rack1.key --upstream root:7700 --upstream-key root.key --leaf 1 --leaves "
    "4\n";

// Every connection is a descriptor, and the usual soft limit is that of programs that select().
void raise_descriptor_limit(const LogSink& log) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const LogField fields[] = {{"from", std::to_string(limit.rlim_cur)},
                             {"to", std::to_string(limit.rlim_max)}};
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
    log(LogLevel::kInfo, "descriptor limit raised", fields);
}

// Sockets are open, keys and certificates are read.
Status harden(const ServeConfig& config, const LogSink& log) {
  ADDEND_TRY(drop_privileges(config.user));
  const bool connects = !config.server.upstream.address.empty();
  if (config.seccomp) ADDEND_TRY(restrict_system_calls(connects));
  const LogField fields[] = {{"user", config.user.empty() ? "unchanged" : config.user},
                             {"seccomp", config.seccomp ? "on" : "off"}};
  log(LogLevel::kInfo, "hardened", fields);
  return {};
}

// What a running server cannot change, if it was changed.
std::string fixed_changes(const ServeConfig& old, const ServeConfig& now) {
  const ServerOptions &a = old.server, &b = now.server;
  const std::pair<const char*, bool> settings[] = {
      {"address", a.address != b.address},
      {"control_port", a.control_port != b.control_port},
      {"data_port", a.data_port != b.data_port},
      {"threads", a.threads != b.threads},
      {"xdp", a.xdp_interface != b.xdp_interface},
      {"[upstream]",
       a.upstream.address != b.upstream.address || a.upstream.identity != b.upstream.identity ||
           a.upstream.key.bytes != b.upstream.key.bytes || a.upstream.leaf != b.upstream.leaf ||
           a.upstream.leaves != b.upstream.leaves},
      {"[http]",
       a.http != b.http || a.http_address != b.http_address || a.http_port != b.http_port},
      {"user", old.user != now.user},
      {"seccomp", old.seccomp != now.seccomp},
      {"json", old.json_log != now.json_log}};
  std::string names;
  for (const auto& [name, differs] : settings) {
    if (differs) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

void reload(ServeFiles& files, Server& server, ServeConfig& config, Log& logger,
            const LogSink& log) {
  auto read = files.config();
  const Status status = read ? server.reload(read->server) : Status(read.error());
  if (!status) {
    const LogField fields[] = {{"why", status.error().message}};
    return log(LogLevel::kError, "reload refused: all settings stay as they were", fields);
  }
  logger.set_level(read->log_level);
  config.drain_s = read->drain_s;
  if (const std::string fixed = fixed_changes(config, *read); !fixed.empty()) {
    const LogField fields[] = {{"settings", fixed}};
    log(LogLevel::kWarning, "some settings change only with a restart", fields);
  }
  const LogField fields[] = {{"tenants", std::to_string(read->server.tenants.size())}};
  log(LogLevel::kInfo, "reloaded", fields);
}

// Before any thread exists, so that all inherit it and sigwait is the only taker.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP})
    sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

void stop(Server& server, const ServeConfig& config, sigset_t signals, const LogSink& log) {
  // The second one has its usual effect. A reload comes too late.
  sigdelset(&signals, SIGHUP);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  if (config.drain_s == 0) return log(LogLevel::kInfo, "stopping: jobs may go on", {});
  server.drain(std::chrono::milliseconds(static_cast<int64_t>(config.drain_s * 1000)));
}

Error start_error(const Error& error, const ServeOptions& options) {
  if (error.code != Errc::kMalformed || options.state_folder.empty()) return error;
  return make_error(error.code, options.state_folder + ": " + error.message +
                                    "; move the file 'jobs' away to start without them");
}

int run_serve(const ServeOptions& options) {
  const sigset_t signals = block_signals();
  auto files = ServeFiles::start(options);
  if (!files) return fail(files.error());
  auto config = (*files)->config();
  if (!config) return fail(config.error());
  auto state = (*files)->state();
  if (!state) return fail(state.error());
  config->server.state = *std::move(state);
  if (!options.state_folder.empty()) {
    config->server.save_state = [&](std::span<const uint8_t> bytes) {
      return (*files)->save(bytes);
    };
  }
  if (!options.switch_folder.empty()) {
    config->server.in_switch.publish = [&](std::span<const uint8_t> jobs) {
      return (*files)->publish(jobs);
    };
  }
  Log logger(*config);
  const LogSink log = logger.sink();
  raise_descriptor_limit(log);
  auto server = Server::start(config->server, log);
  if (!server) return fail(start_error(server.error(), options));
  const Status status = harden(*config, log);
  if (!status) return fail(status.error());
  fmt::print("control {} http {}\n", (*server)->control_port(), (*server)->http_port());
  std::fflush(stdout);
  int signal_number = 0;
  while (sigwait(&signals, &signal_number) == 0 && signal_number == SIGHUP)
    reload(**files, **server, *config, logger, log);
  stop(**server, *config, signals, log);
  return 0;
}

void add_upstream_options(CLI::App& command, ServeOptions& options) {
  CLI::Option* upstream =
      command
          .add_option("--upstream", options.upstream.address,
                      "be a leaf of a tree: contribute the sums of this server's workers there")
          ->type_name("HOST:PORT");
  command
      .add_option("--upstream-identity", options.upstream.identity,
                  "who this leaf is there; default: 'default'")
      ->needs(upstream);
  command.add_option("--upstream-key", options.upstream_key_file, "file with its key there")
      ->type_name("FILE")
      ->needs(upstream);
  command.add_option("--leaf", options.upstream.leaf, "which leaf of the tree this is, from 0")
      ->check(CLI::Range(0, 63))
      ->capture_default_str()
      ->needs(upstream);
  command.add_option("--leaves", options.upstream.leaves, "leaves of the tree")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->needs(upstream);
}

void add_switch_options(CLI::App& command, ServeOptions& options) {
  CLI::Option* in_switch =
      command
          .add_option("--switch", options.switch_folder,
                      "a P4 switch folds all jobs: what it has to know is kept here (docs/p4.md)")
          ->type_name("DIR");
  command
      .add_option("--switch-payload", options.in_switch.payload_bytes,
                  "bytes of a payload in the switch's program")
      ->capture_default_str()
      ->needs(in_switch);
  command.add_option("--switch-slots", options.in_switch.slots, "slots of the switch's program")
      ->capture_default_str()
      ->needs(in_switch);
}

}  // namespace

void add_serve_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("serve", "Run the aggregation server");
  auto options = std::make_shared<ServeOptions>();
  command->add_option("--config", options->config_file, "TOML file")->type_name("FILE");
  command->add_option("--state-dir", options->state_folder, "where jobs are kept over a restart")
      ->type_name("DIR");
  command->add_option("--key", options->key_file, "file with the key of tenant 'default'")
      ->type_name("FILE");
  command->add_option("--address", options->address, "to listen at; default: all");
  command->add_option("--port", options->port, "TCP port of the control plane; 0: any")
      ->check(CLI::Range(0, 65535 - kHttpAbove))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "data threads")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--xdp", options->xdp_interface, "fold and answer in this interface's driver")
      ->type_name("IFACE");
  add_upstream_options(*command, *options);
  add_switch_options(*command, *options);
  command->footer(kFooter);
  command->callback([options, &exit] { exit.code = run_serve(*options); });
}

}  // namespace addend::cli
