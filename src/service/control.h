// SPDX-License-Identifier: Apache-2.0
// The control plane: one thread, many TLS connections, and the registry that their messages are
// for.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "auth/tls.h"
#include "net/control_message.h"
#include "net/descriptor.h"
#include "service/registry.h"
#include "service/rivals.h"

namespace addend::service {

/// What a connection may ask without being a worker, beside the registry's own answers.
using JobCounters = std::function<void(const JobView& view, addend_control_status& status)>;

struct ControlOptions {
  net::Address address;
  uint32_t max_connections = 1024;
  std::optional<auth::Certificates> certificates;
};

class Control final : private Mail {
 public:
  /// `make_registry` is called once, with where the registry's letters go.
  static Result<std::unique_ptr<Control>> start(
      const ControlOptions& options,
      const std::function<std::unique_ptr<Registry>(Mail& mail)>& make_registry,
      JobCounters counters, LogSink log);
  ~Control() override;

  uint16_t port() const { return port_; }
  /// Other certificates, number of connections and tenants from now on; connections that are there
  /// stay. On an error nothing has changed. The address is not looked at.
  Status reload(const ControlOptions& options, std::vector<TenantOptions> tenants);
  /// Runs on the control thread, in order. Any thread may call.
  void post(std::function<void(Registry&)> work);
  uint32_t connections() const { return connection_count_.load(std::memory_order_relaxed); }

 private:
  struct Connection;
  Control(const ControlOptions& options, JobCounters counters, LogSink log);

  Result<std::shared_ptr<auth::TlsContext>> make_tls(const ControlOptions& options);
  void run();
  void run_posted();
  void accept_all();
  bool drive(Connection& connection);
  bool drive_handshake(Connection& connection);
  bool read_messages(Connection& connection);
  bool write_out(Connection& connection);
  Status handle(Connection& connection, const net::ControlMessage& message);
  Status join(Connection& connection, const net::ControlMessage& message);
  void settle_rivals();
  static void refuse(Connection& connection, const Error& error);
  Connection* find(ConnectionId id) const;
  void list(Connection& connection);
  void close(Connection& connection);
  void send(ConnectionId to, addend_control_type type, std::span<const uint8_t> body,
            std::span<const uint32_t> numbers) override;

  ControlOptions options_;
  JobCounters counters_;
  LogSink log_;
  std::unique_ptr<Registry> registry_;
  std::shared_ptr<auth::TlsContext> tls_;
  net::Descriptor listener_, wake_;
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  Rivals rivals_;
  ConnectionId next_id_ = 1;
  std::atomic<uint32_t> connection_count_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<std::function<void(Registry&)>> posted_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace addend::service
