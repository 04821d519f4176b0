// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/serve_config.h"

#include <limits>
#include <set>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "apps/addend/key_file.h"

namespace addend::cli {
namespace {

/// Reads the keys of one table and remembers the first thing that is wrong with it.
class Reader {
 public:
  Reader(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  template <typename T>
  void number(const char* key, T& into) {
    known_.insert(key);
    if (!table_.contains(key)) return;
    const auto value = table_[key].value<int64_t>();
    if (!value || *value < 0 || static_cast<uint64_t>(*value) > std::numeric_limits<T>::max()) {
      return complain(key, "a number in range");
    }
    into = static_cast<T>(*value);
  }
  void seconds(const char* key, double& into) {
    known_.insert(key);
    if (!table_.contains(key)) return;
    const auto value = table_[key].value<double>();
    if (!value || !(*value >= 0)) return complain(key, "seconds");
    into = *value;
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
    const auto value = table_[key].value<T>();
    if (!value) return complain(key, kind);
    into = *value;
  }
  void complain(const char* key, const char* wanted) {
    if (problem_.empty()) problem_ = fmt::format("{}: '{}' wants {}", where_, key, wanted);
  }

  const toml::table& table_;
  std::string where_;
  std::set<std::string> known_;
  std::string problem_;
};

const toml::table& table_at(const toml::table& root, const char* name) {
  static const toml::table kEmpty;
  const toml::table* table = root[name].as_table();
  return table != nullptr ? *table : kEmpty;
}

Status read_tenant(const toml::table& table, std::size_t number, ServerOptions& server) {
  TenantOptions tenant;
  std::string key_file;
  Reader reader(table, fmt::format("[[tenant]] number {}", number));
  reader.text("name", tenant.name);
  reader.text("key_file", key_file);
  reader.flag("sees_all", tenant.sees_all);
  reader.flag("floats", tenant.floats);
  reader.number("max_jobs", tenant.max_jobs);
  reader.number("max_slots", tenant.max_slots);
  reader.number("max_memory_bytes", tenant.max_memory_bytes);
  reader.number("packets_per_s", tenant.packets_per_s);
  ADDEND_TRY(reader.finish());
  if (!key_file.empty()) {
    const auto key = read_key_file(key_file);
    if (!key) return key.error();
    tenant.key = *key;
  }
  server.tenants.push_back(tenant);
  return {};
}

Status read_tables(const toml::table& root, ServeConfig& config) {
  for (const auto& [key, value] : root) {
    const std::string_view name = key.str();
    if (name != "server" && name != "http" && name != "tls" && name != "log" && name != "tenant") {
      return make_error(Errc::kInvalidArgument, fmt::format("there is no table [{}]", name));
    }
  }
  ServerOptions& server = config.server;
  Reader main(table_at(root, "server"), "[server]");
  main.text("address", server.address);
  main.number("control_port", server.control_port);
  main.number("data_port", server.data_port);
  main.number("threads", server.threads);
  main.number("max_connections", server.max_connections);
  main.seconds("drain_s", config.drain_s);
  main.text("user", config.user);
  main.flag("seccomp", config.seccomp);
  ADDEND_TRY(main.finish());
  Reader http(table_at(root, "http"), "[http]");
  http.flag("enabled", server.http);
  http.text("address", server.http_address);
  http.number("port", server.http_port);
  ADDEND_TRY(http.finish());
  Reader tls(table_at(root, "tls"), "[tls]");
  tls.text("authority", server.certificates.authority);
  tls.text("certificate", server.certificates.certificate);
  tls.text("key", server.certificates.key);
  ADDEND_TRY(tls.finish());
  Reader log(table_at(root, "log"), "[log]");
  log.flag("json", config.json_log);
  log.text("level", config.log_level);
  ADDEND_TRY(log.finish());
  const toml::array* tenants = root["tenant"].as_array();
  for (std::size_t i = 0; tenants != nullptr && i < tenants->size(); ++i) {
    const toml::table* tenant = (*tenants)[i].as_table();
    if (tenant == nullptr) return make_error(Errc::kInvalidArgument, "write tenants as [[tenant]]");
    ADDEND_TRY(read_tenant(*tenant, i + 1, server));
  }
  return {};
}

}  // namespace

Result<ServeConfig> read_serve_config(const std::string& path) {
  ServeConfig config;
  config.server.control_port = 7700;
  config.server.data_port = 7701;
  config.server.http_port = 7780;
  try {
    const toml::table root = toml::parse_file(path);
    Status status = read_tables(root, config);
    if (!status) return make_error(status.error().code, path + ": " + status.error().message);
  } catch (const toml::parse_error& error) {
    return make_error(Errc::kInvalidArgument,
                      fmt::format("{}:{}: {}", path, error.source().begin.line,
                                  std::string_view(error.description())));
  }
  return config;
}

}  // namespace addend::cli
