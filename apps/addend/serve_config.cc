// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/serve_config.h"

#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include <fmt/format.h>
#include <toml++/toml.h>

namespace addend::cli {
namespace {

constexpr double kMostSeconds = 1e6;

/// Reads the keys of one table and remembers the first thing that is wrong with it.
class Reader {
 public:
  Reader(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  /// A whole number from `least` to what T holds.
  template <typename T>
  void number(const char* key, T& into, T least = 0) {
    known_.insert(key);
    if (!table_.contains(key)) return;
    const auto value = table_[key].value_exact<int64_t>();
    constexpr uint64_t kMost =
        std::min<uint64_t>(std::numeric_limits<T>::max(), std::numeric_limits<int64_t>::max());
    if (!value || *value < static_cast<int64_t>(least) || static_cast<uint64_t>(*value) > kMost) {
      return complain(key, fmt::format("a whole number from {} to {}", least, kMost));
    }
    into = static_cast<T>(*value);
  }
  void seconds(const char* key, double& into) {
    known_.insert(key);
    if (!table_.contains(key)) return;
    const toml::node_view node = table_[key];
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !(*value >= 0 && *value <= kMostSeconds)) {
      return complain(key, fmt::format("seconds, 0 to {}", kMostSeconds));
    }
    into = *value;
  }
  void choice(const char* key, std::string& into, std::span<const std::string_view> choices) {
    text(key, into);
    if (std::find(choices.begin(), choices.end(), into) != choices.end()) return;
    complain(key, fmt::format("one of {}", fmt::join(choices, ", ")));
  }
  void text(const char* key, std::string& into) { take(key, into, "text"); }
  void flag(const char* key, bool& into) { take(key, into, "true or false"); }

  Status finish() const {
    if (!problem_.empty()) return make_error(Errc::kInvalidArgument, problem_);
    for (const auto& [key, value] : table_) {
      if (known_.count(std::string(key.str())) == 0) {
        return make_error(Errc::kInvalidArgument,
                          fmt::format("{}: there is no key '{}'", where_, key.str()));
      }
    }
    return {};
  }

 private:
  template <typename T>
  void take(const char* key, T& into, const char* kind) {
    known_.insert(key);
    if (!table_.contains(key)) return;
    const auto value = table_[key].value_exact<T>();
    if (!value) return complain(key, kind);
    into = *value;
  }
  void complain(const char* key, std::string_view wanted) {
    if (problem_.empty()) problem_ = fmt::format("{}: '{}' wants {}", where_, key, wanted);
  }

  const toml::table& table_;
  std::string where_;
  std::set<std::string> known_;
  std::string problem_;
};

// The table [name], empty if there is none.
Result<const toml::table*> table_at(const toml::table& root, const char* name) {
  static const toml::table kEmpty;
  if (!root.contains(name)) return &kEmpty;
  if (const toml::table* table = root[name].as_table()) return table;
  return make_error(Errc::kInvalidArgument,
                    fmt::format("'{0}' wants to be a table: write [{0}]", name));
}

Status read_upstream_key(const std::string& file, UpstreamOptions& upstream, const ReadFile& read) {
  if (upstream.address.empty()) return {};
  if (upstream.identity.empty()) upstream.identity = "default";
  if (file.empty()) {
    return make_error(Errc::kInvalidArgument,
                      "a leaf needs a key of its own at the next server: --upstream-key, or "
                      "'key_file' in [upstream]");
  }
  const auto key = read_key_file(file, read);
  if (!key) return key.error();
  upstream.key = *key;
  return {};
}

Status read_tenant(const toml::table& table, std::size_t number, ServerOptions& server,
                   const ReadFile& read) {
  TenantOptions tenant;
  std::string key_file;
  Reader reader(table, fmt::format("[[tenant]] number {}", number));
  reader.text("name", tenant.name);
  reader.text("key_file", key_file);
  reader.flag("sees_all", tenant.sees_all);
  reader.flag("floats", tenant.floats);
  reader.number("max_jobs", tenant.max_jobs, 1u);
  reader.number("max_slots", tenant.max_slots, 1u);
  reader.number("max_memory_bytes", tenant.max_memory_bytes, uint64_t{1});
  reader.number("max_connections", tenant.max_connections);
  reader.number("packets_per_s", tenant.packets_per_s);
  ADDEND_TRY(reader.finish());
  if (!key_file.empty()) {
    const auto key = read_key_file(key_file, read);
    if (!key) return key.error();
    tenant.key = *key;
  }
  server.tenants.push_back(tenant);
  return {};
}

Status read_server(const toml::table& table, ServeConfig& config, const ReadFile&) {
  ServerOptions& server = config.server;
  Reader reader(table, "[server]");
  reader.text("address", server.address);
  reader.number("control_port", server.control_port);
  reader.number("data_port", server.data_port);
  reader.number("threads", server.threads, 1u);
  reader.text("xdp", server.xdp_interface);
  reader.number("max_connections", server.max_connections, 1u);
  reader.seconds("drain_s", config.drain_s);
  reader.text("user", config.user);
  reader.flag("seccomp", config.seccomp);
  return reader.finish();
}

Status read_upstream(const toml::table& table, ServeConfig& config, const ReadFile& read) {
  UpstreamOptions& upstream = config.server.upstream;
  std::string key_file;
  Reader reader(table, "[upstream]");
  reader.text("address", upstream.address);
  reader.text("identity", upstream.identity);
  reader.text("key_file", key_file);
  reader.number("leaf", upstream.leaf);
  reader.number("leaves", upstream.leaves, 1u);
  ADDEND_TRY(reader.finish());
  return read_upstream_key(key_file, upstream, read);
}

Status read_http(const toml::table& table, ServeConfig& config, const ReadFile&) {
  Reader reader(table, "[http]");
  reader.flag("enabled", config.server.http);
  reader.text("address", config.server.http_address);
  reader.number("port", config.server.http_port);
  return reader.finish();
}

Status read_tls(const toml::table& table, ServeConfig& config, const ReadFile& read) {
  ServiceCertificates& files = config.server.certificates;
  Reader reader(table, "[tls]");
  reader.text("authority", files.authority);
  reader.text("certificate", files.certificate);
  reader.text("key", files.key);
  ADDEND_TRY(reader.finish());
  const bool some = !(files.authority + files.certificate + files.key).empty();
  if (some && (files.authority.empty() || files.certificate.empty() || files.key.empty())) {
    return make_error(Errc::kInvalidArgument, "[tls]: give authority, certificate and key");
  }
  for (std::string* file : {&files.authority, &files.certificate, &files.key}) {
    if (!some) break;
    auto pem = read(*file, Privacy::kPublic);
    if (!pem) return pem.error();
    *file = *std::move(pem);
  }
  return {};
}

Status read_log(const toml::table& table, ServeConfig& config, const ReadFile&) {
  constexpr std::string_view kLevels[] = {"debug", "info", "warning", "error"};
  Reader reader(table, "[log]");
  reader.flag("json", config.json_log);
  reader.choice("level", config.log_level, kLevels);
  return reader.finish();
}

Status read_tenants(const toml::table& root, ServeConfig& config, const ReadFile& read) {
  if (!root.contains("tenant")) return {};
  const Error no_row =
      make_error(Errc::kInvalidArgument, "there may be several tenants: write [[tenant]]");
  const toml::array* tenants = root["tenant"].as_array();
  if (tenants == nullptr) return no_row;
  for (std::size_t i = 0; i < tenants->size(); ++i) {
    const toml::table* tenant = (*tenants)[i].as_table();
    if (tenant == nullptr) return no_row;
    ADDEND_TRY(read_tenant(*tenant, i + 1, config.server, read));
  }
  return {};
}

Status read_tables(const toml::table& root, ServeConfig& config, const ReadFile& read) {
  constexpr struct {
    const char* name;
    Status (*take)(const toml::table& table, ServeConfig& config, const ReadFile& read);
  } kTables[] = {{"server", read_server},
                 {"upstream", read_upstream},
                 {"http", read_http},
                 {"tls", read_tls},
                 {"log", read_log}};
  for (const auto& [key, value] : root) {
    const std::string_view name = key.str();
    const bool known = std::any_of(std::begin(kTables), std::end(kTables),
                                   [&](const auto& table) { return name == table.name; });
    if (!known && name != "tenant") {
      return make_error(Errc::kInvalidArgument, fmt::format("there is no table [{}]", name));
    }
  }
  for (const auto& table : kTables) {
    const auto found = table_at(root, table.name);
    if (!found) return found.error();
    ADDEND_TRY(table.take(**found, config, read));
  }
  return read_tenants(root, config, read);
}

Result<ServeConfig> read_serve_config(const std::string& path, const ReadFile& read) {
  ServeConfig config;
  config.server.control_port = 7700;
  config.server.data_port = 7701;
  config.server.http_port = 7780;
  const auto text = read(path, Privacy::kPublic);
  if (!text) return text.error();
  try {
    const toml::table root = toml::parse(*text, path);
    Status status = read_tables(root, config, read);
    if (!status) return make_error(status.error().code, path + ": " + status.error().message);
  } catch (const toml::parse_error& error) {
    return make_error(Errc::kInvalidArgument,
                      fmt::format("{}:{}: {}", path, error.source().begin.line,
                                  std::string_view(error.description())));
  }
  return config;
}

}  // namespace

Result<ServeConfig> make_config(const ServeOptions& options, const ReadFile& read) {
  if (!options.config_file.empty()) {
    auto config = read_serve_config(options.config_file, read);
    if (!config) return config;
    if (!options.xdp_interface.empty()) config->server.xdp_interface = options.xdp_interface;
    config->server.in_switch = options.in_switch;
    if (options.upstream.address.empty()) return config;
    config->server.upstream = options.upstream;
    ADDEND_TRY(read_upstream_key(options.upstream_key_file, config->server.upstream, read));
    return config;
  }
  if (options.key_file.empty()) {
    return make_error(Errc::kInvalidArgument, "give --config FILE or --key FILE");
  }
  const auto key = read_key_file(options.key_file, read);
  if (!key) return key.error();
  ServeConfig config;
  config.server.address = options.address;
  config.server.control_port = options.port;
  config.server.data_port = static_cast<uint16_t>(options.port == 0 ? 0 : options.port + 1);
  config.server.http_port =
      static_cast<uint16_t>(options.port == 0 ? 0 : options.port + kHttpAbove);
  config.server.threads = options.threads;
  config.server.xdp_interface = options.xdp_interface;
  config.server.in_switch = options.in_switch;
  config.server.upstream = options.upstream;
  ADDEND_TRY(read_upstream_key(options.upstream_key_file, config.server.upstream, read));
  config.server.tenants.resize(1);
  config.server.tenants[0].name = "default";
  config.server.tenants[0].key = *key;
  config.server.tenants[0].sees_all = true;
  return config;
}

}  // namespace addend::cli
