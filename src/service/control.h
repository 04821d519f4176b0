// SPDX-License-Identifier: Apache-2.0
// The control plane: one thread, many TLS connections, and the registry that their messages are
// for. Work and bytes are bounded for each connection, tenant and handshake, and for each turn of
// the loop (docs/security.md, "Control plane").
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "auth/tls.h"
#include "net/descriptor.h"
#include "service/connection.h"
#include "service/handshakes.h"
#include "service/join_conflicts.h"
#include "service/registry.h"
#include "service/share.h"
#include "service/status.h"

namespace addend::service {

/// Fills in what the data plane counted of jobs: statuses[i] is that of views[i].
using JobCounters =
    std::function<void(std::span<const JobView> views, std::span<addend_control_status> statuses)>;

struct ControlOptions {
  net::Address address;
  uint32_t max_connections = 1024;
  std::optional<auth::Certificates> certificates;
};

/// What everybody may know, as of the last change.
struct ControlView {
  std::vector<JobView> jobs;
  ControlStatus status;
  Clock::time_point at{};  ///< at least once a second
};

class Control final : private MessageSink {
 public:
  /// `make_registry` is called once, with where the registry's messages go.
  static Result<std::unique_ptr<Control>> start(
      const ControlOptions& options,
      const std::function<std::unique_ptr<Registry>(MessageSink& sink)>& make_registry,
      JobCounters counters, LogSink log);
  ~Control() override;

  uint16_t port() const { return port_; }
  /// Other certificates, number of connections and tenants from now on; connections that are there
  /// stay. On an error nothing has changed. The address is not looked at.
  Status reload(const ControlOptions& options, std::vector<TenantOptions> tenants);
  /// Runs on the control thread, in order. Any thread may call.
  void post(std::function<void(Registry&)> work);
  /// Never waits for the control thread. Any thread may call.
  ControlView view() const;

 private:
  Control(const ControlOptions& options, JobCounters counters, LogSink log);

  Result<std::shared_ptr<auth::TlsContext>> make_tls(const ControlOptions& options);
  void run();
  Clock::time_point watch(std::vector<pollfd>& ready, Clock::time_point now) const;
  void run_posted();
  void accept_some(Clock::time_point now);
  std::chrono::nanoseconds accept_waiting(Clock::time_point now);
  void drive_all(std::span<const pollfd> ready, Clock::time_point now);
  bool drive_ready(Connection& connection, short revents, Clock::time_point now);
  enum class Step : uint8_t { kGoesOn, kWaits, kOver };
  Step drive(Connection& connection);
  void let_in(Peer peer, Clock::time_point now);
  bool holds_too_much(const std::string& tenant) const;
  Status make_room(const std::string& identity);
  bool make_room(uint64_t limit, const std::function<bool(const Connection&)>& counts);
  bool overdue(const Connection& connection, Clock::time_point now) const;
  Status handle(Connection& connection, const net::ControlMessage& message);
  Status join(Connection& connection, const net::ControlMessage& message);
  void settle_conflicts();
  void refuse(Connection& connection, const Error& error);
  Connection* find(ConnectionId id) const;
  void list(Connection& connection);
  void close(Connection& connection);
  void publish();
  void send(ConnectionId to, addend_control_type type, std::span<const uint8_t> body,
            std::span<const uint32_t> numbers) override;
  void cut(ConnectionId connection) override;

  ControlOptions options_;
  JobCounters counters_;
  LogSink log_;
  std::unique_ptr<Registry> registry_;
  std::optional<Handshakes> handshakes_;
  net::Descriptor listener_, wake_;
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;  // oldest first
  JoinConflicts conflicts_;
  std::map<std::string, Share> shares_;  // by tenant
  Share crowd_;                          // for taking strangers in who displace each other
  Clock::time_point accept_at_{};        // not before
  Meter meter_;                          // of thread_
  std::chrono::nanoseconds toll_{};      // that each pays for whom this turn of the loop is
  ConnectionId next_id_ = 1;
  bool changed_ = true;  // since view_ was made
  ControlStatus status_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<std::function<void(Registry&)>> posted_;  // guarded by mutex_
  ControlView view_;                                    // guarded by mutex_
  std::thread thread_;
};

}  // namespace addend::service
