// SPDX-License-Identifier: Apache-2.0
// addend serve: the aggregation server.
#include <chrono>
#include <csignal>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "apps/addend/command.h"
#include "apps/addend/harden.h"
#include "apps/addend/key_file.h"
#include "apps/addend/serve_config.h"

namespace addend::cli {
namespace {

struct ServeOptions {
  std::string config_file;
  std::string key_file;
  std::string address;
  uint16_t port = 7700;
  uint32_t threads = 1;
};

// The pages' port is so far above the control plane's.
constexpr int kHttpAbove = 80;

constexpr const char* kFooter =
    "With --config, everything comes from the file (docs/service.md). Without, one tenant named\n"
    "'default' has the key of --key; UDP takes the ports behind --port, and /metrics and a page "
    "are\n"
    "at 127.0.0.1, 80 ports above it.\n"
    "SIGTERM and SIGINT drain: no new workers, then out when the last one has left or time is up; "
    "a\n"
    "second signal ends at once.\n\n"
    "Examples:\n"
    "  addend keygen lab.key && addend serve --key lab.key\n"
    "  addend serve --config /etc/addend/serve.toml\n";

spdlog::level::level_enum level_of(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<std::size_t>(level)];
}

// One line an event: "event name=value ...", or a JSON object.
LogSink make_log(const ServeConfig& config) {
  auto logger =
      std::make_shared<spdlog::logger>("addend", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(config.log_level));
  logger->flush_on(spdlog::level::info);
  logger->set_pattern(config.json_log ? "%v" : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  return [logger, json = config.json_log](LogLevel level, std::string_view event,
                                          std::span<const LogField> fields) {
    if (!logger->should_log(level_of(level))) return;
    if (json) {
      nlohmann::ordered_json line = {
          {"time",
           std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
               .count()},
          {"level", spdlog::level::to_string_view(level_of(level)).data()},
          {"event", event}};
      for (const LogField& field : fields)
        line[std::string(field.name)] = field.value;
      logger->log(level_of(level), "{}", line.dump());
      return;
    }
    std::string text(event);
    for (const LogField& field : fields)
      text += fmt::format(" {}={}", field.name, field.value);
    logger->log(level_of(level), "{}", text);
  };
}

Result<ServeConfig> make_config(const ServeOptions& options) {
  if (!options.config_file.empty()) return read_serve_config(options.config_file);
  if (options.key_file.empty()) {
    return make_error(Errc::kInvalidArgument, "give --config FILE or --key FILE");
  }
  const auto key = read_key_file(options.key_file);
  if (!key) return key.error();
  ServeConfig config;
  config.server.address = options.address;
  config.server.control_port = options.port;
  config.server.data_port = static_cast<uint16_t>(options.port == 0 ? 0 : options.port + 1);
  config.server.http_port =
      static_cast<uint16_t>(options.port == 0 ? 0 : options.port + kHttpAbove);
  config.server.threads = options.threads;
  config.server.tenants.resize(1);
  config.server.tenants[0].name = "default";
  config.server.tenants[0].key = *key;
  config.server.tenants[0].sees_all = true;
  return config;
}

// Sockets are open, keys and certificates are read, and the log has found its time zone.
Status harden(const ServeConfig& config, const LogSink& log) {
  ADDEND_TRY(drop_privileges(config.user));
  if (config.seccomp) ADDEND_TRY(restrict_system_calls());
  const LogField fields[] = {{"user", config.user.empty() ? "unchanged" : config.user},
                             {"seccomp", config.seccomp ? "on" : "off"}};
  log(LogLevel::kInfo, "hardened", fields);
  return {};
}

int run_serve(const ServeOptions& options) {
  auto config = make_config(options);
  if (!config) return fail(config.error());
  // Before any thread exists, so that all inherit it and sigwait below is the only taker.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const LogSink log = make_log(*config);
  auto server = Server::start(config->server, log);
  if (!server) return fail(server.error());
  const Status status = harden(*config, log);
  if (!status) return fail(status.error());
  fmt::print("control {} http {}\n", (*server)->control_port(), (*server)->http_port());
  std::fflush(stdout);
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  // The second one has its usual effect.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  (*server)->drain(std::chrono::milliseconds(static_cast<int64_t>(config->drain_s * 1000)));
  return 0;
}

}  // namespace

void add_serve_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("serve", "Run the aggregation server");
  auto options = std::make_shared<ServeOptions>();
  command->add_option("--config", options->config_file, "TOML file")->type_name("FILE");
  command->add_option("--key", options->key_file, "file with the key of tenant 'default'")
      ->type_name("FILE");
  command->add_option("--address", options->address, "to listen at; default: all");
  command->add_option("--port", options->port, "TCP port of the control plane; 0: any")
      ->check(CLI::Range(0, 65535 - kHttpAbove))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "data threads")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->footer(kFooter);
  command->callback([options, &exit] { exit.code = run_serve(*options); });
}

}  // namespace addend::cli
