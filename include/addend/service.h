// SPDX-License-Identifier: Apache-2.0
// The aggregation service: a server that sums workers' planes without decoding them, and what an
// operator asks of it. Workers use it through create_service_reducer (reduce.h). Protocol:
// docs/formats/protocol.md; what is protected and what is not: docs/security.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "addend/access.h"
#include "addend/result.h"

namespace addend {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

struct LogField {
  std::string_view name;
  std::string value;
};

/// What happened, in words that do not change, and its particulars. Called from several threads.
/// Secrets are never among them.
using LogSink =
    std::function<void(LogLevel level, std::string_view event, std::span<const LogField> fields)>;

/// Keeps bytes so that they outlive the process; on an error what was kept before is still there.
using SaveState = std::function<Status(std::span<const uint8_t> state)>;

/// A party that may have jobs, and how much of the server they may take together.
struct TenantOptions {
  std::string name;        ///< what it calls itself, with a key or in its certificate's common name
  ServiceKey key;          ///< all zeros: certificates only
  bool sees_all = false;   ///< may list and drain jobs of other tenants
  bool floats = true;      ///< its jobs may sum floats
  uint32_t max_jobs = 64;  ///
  uint32_t max_slots = 8192;  ///< of all its jobs
  uint64_t max_memory_bytes = uint64_t{64} << 20;
  uint32_t max_connections = 0;  ///< to the control plane; 0: an equal part of the server's
  uint32_t packets_per_s = 0;    ///< of each worker at each thread; 0: no limit
};

/// The next server of a tree. A leaf folds its workers' contributions and contributes once, for all
/// of them, to that server, whose results are then theirs (docs/service.md, "Trees").
struct UpstreamOptions {
  std::string address;   ///< "host:port" of its control plane; "": this server is no leaf
  std::string identity;  ///< the tenant there that all jobs of this server are jobs of
  ServiceKey key;
  uint32_t leaf = 0;  ///< which one this is ...
  uint32_t leaves =
      1;  ///< ... of so many, 1 to 64. It has the workers from leaf * world / leaves on
};

/// A P4 switch in front of the server, which folds all its jobs (docs/p4.md). The server keeps
/// control, and says what the switch has to know.
struct SwitchOptions {
  /// Takes it, as text, whenever an epoch begins or ends. Holds secrets. Empty: there is no switch.
  SaveState publish;
  uint32_t payload_bytes = 96;  ///< of the switch's program
  uint32_t slots = 4096;        ///< of all jobs together
};

struct ServerOptions {
  std::string address;        ///< to listen at; "": every address of this machine
  uint16_t control_port = 0;  ///< TCP; 0: any
  uint16_t data_port = 0;     ///< UDP, the first of `threads` ports; 0: any
  uint32_t threads = 1;       ///< data threads, 1 to 64
  /// Contributions that arrive at this interface are folded and answered in its driver, as far as
  /// they are of integers (docs/xdp.md). "": all by the data threads.
  std::string xdp_interface;
  UpstreamOptions upstream;  ///< not with xdp_interface, nor with several threads
  SwitchOptions in_switch;   ///< not with xdp_interface or upstream
  bool http = true;          ///< serve /metrics and a page for people
  std::string http_address = "127.0.0.1";
  uint16_t http_port = 0;  ///< 0: any
  std::vector<TenantOptions> tenants;
  /// With them, clients may also come with a certificate of this authority.
  ServiceCertificates certificates;
  uint32_t max_connections = 1024;
  /// Where jobs that operators made are kept, and what an earlier server kept there ("": nothing).
  /// Without, they end with the server. Holds keys of jobs.
  SaveState save_state;
  std::vector<uint8_t> state;
};

/// A running server. Its threads do the work; any thread may call. Destroying it leaves jobs as
/// they are: workers join the next server at that address and go on.
class Server {
 public:
  virtual ~Server() = default;

  static Result<std::unique_ptr<Server>> start(const ServerOptions& options, LogSink log);

  virtual uint16_t control_port() const = 0;
  virtual uint16_t http_port() const = 0;  ///< 0 without http
  /// Other tenants, certificates and number of connections, while jobs go on; the rest of `options`
  /// is not looked at. On an error nothing has changed. Jobs of tenants that are no more end.
  virtual Status reload(const ServerOptions& options) = 0;
  /// Takes no new jobs and workers, and waits until those that are here have left. After `patience`
  /// it ends what is left. The server answers until it is destroyed.
  virtual void drain(std::chrono::milliseconds patience) = 0;
  /// What /metrics says.
  virtual std::string metrics() const = 0;
};

/// What an operator wants of a job. Workers that join a job which nobody created make one of their
/// own; it goes when they leave.
struct JobOptions {
  std::string name;
  uint32_t world = 0;
  uint32_t slots = 512;
  uint32_t payload_bytes = 1408;  ///< at most; less where some worker's path carries less
  bool floats = true;
  std::chrono::nanoseconds patience{0};  ///< 0: a turn waits for ever
  uint32_t quorum = 0;
  ServiceKey key;  ///< not all zeros: lets workers join this job, and nothing else
};

struct JobInfo {
  std::string tenant, name;
  uint32_t epoch = 0;  ///< 0: waiting for workers
  uint32_t world = 0, joined = 0, slots = 0;
  uint64_t turns = 0, refused = 0;
  uint64_t waited_for = 0;  ///< workers, by bit: to join, or for a second or more to contribute
};

/// `access` says where the server is and who asks.
Status create_job(const ServiceAccess& access, const JobOptions& job);
Result<std::vector<JobInfo>> list_jobs(const ServiceAccess& access);
/// No worker may join any more; the job goes when the last one leaves. `name` is that of a job of
/// one's own, or "tenant/name" for who sees all; without a tenant, the only job of that name.
Status drain_job(const ServiceAccess& access, const std::string& name);

/// 32 bytes from the system's generator.
Result<ServiceKey> generate_service_key();

}  // namespace addend
