// SPDX-License-Identifier: Apache-2.0
// Jobs and their lives: who may have one, who is in it, when an epoch begins and ends. No sockets,
// no threads: the control plane brings messages and takes them away.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "addend/service.h"
#include "aggregate/slots.h"
#include "auth/frame_key.h"
#include "net/address.h"
#include "service/data_plane.h"
#include "wire/control.h"

namespace addend::service {

using ConnectionId = uint64_t;

/// Takes messages to connections; one that is gone swallows them.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  virtual void send(ConnectionId to, addend_control_type type, std::span<const uint8_t> body,
                    std::span<const uint32_t> numbers) = 0;
  /// Closes it without a word, as if the server had gone.
  virtual void cut(ConnectionId connection) = 0;
};

/// The next server of a tree, as the registry of a leaf sees it.
class NextServer {
 public:
  virtual ~NextServer() = default;
  virtual uint32_t leaf() const = 0;
  virtual uint32_t leaves() const = 0;
  /// Joins a job there, as the one worker that this leaf is. Answered by Registry::upstream_joined
  /// with the same number, then by at most one of upstream_ended and upstream_gone. `positions` are
  /// what all workers of this leaf have done; empty: they begin anew.
  virtual void join(uint32_t number, const std::string& name, const JobOptions& options,
                    std::vector<uint32_t> positions) = 0;
  /// Nothing more is answered. `done`: no worker is left, and nothing is wrong; otherwise the other
  /// leaves are told that this one is lost.
  virtual void leave(uint32_t number, bool done) = 0;
};

/// The data threads, as the registry sees them.
class DataThreads {
 public:
  virtual ~DataThreads() = default;
  virtual uint32_t threads() const = 0;
  virtual uint16_t port(uint32_t thread) const = 0;
  /// `parts` has one entry for each of the first threads.
  virtual void start(std::shared_ptr<const JobEpoch> job, std::vector<aggregate::Slots> parts) = 0;
  virtual void set_table(uint32_t epoch, uint32_t number, const aggregate::Table& table) = 0;
  /// See DataPlane::leave.
  virtual void leave(uint32_t epoch, uint32_t worker) = 0;
  virtual void end(uint32_t epoch, addend_notice why, uint32_t worker) = 0;
  virtual void remove(uint32_t epoch) = 0;
  /// Every thread echoes these probes while the caller holds on to `probe`.
  virtual void expect(const std::shared_ptr<Probe>& probe) = 0;
};

/// What the slots of such a job are like, but for its epoch.
aggregate::SlotsOptions slots_of(const JobOptions& options, bool floats_allowed);

/// A job as reports show it.
struct JobView {
  std::string tenant, name;
  uint32_t epoch = 0, world = 0, joined = 0, slots = 0;
  uint64_t waited_for = 0;     ///< workers, by bit, that an epoch cannot begin without
  uint32_t payload_bytes = 0;  ///< of the epoch; at most, while workers are waited for
  bool draining = false;
};

/// Where workers go on together: for each slot the turns that all of them have done. Nobody can be
/// more than one turn ahead of the last, unless it was left behind or has lost its place.
struct Resume {
  uint32_t flags = 0;
  std::vector<uint32_t> positions;
};

/// One thread at a time.
class Registry {
 public:
  /// `save` is given what restore takes, whenever a job that must outlive the process comes, goes
  /// or changes; it may be empty.
  /// `next`: this server is a leaf, and every job is a job there, too; null: it is not.
  /// `in_switch`: who folds all jobs instead of the data threads, if anybody.
  Registry(std::vector<TenantOptions> tenants, uint32_t boot, DataThreads& threads,
           MessageSink& sink, LogSink log, SaveState save = {}, NextServer* next = nullptr,
           SwitchOptions in_switch = {});

  /// Takes up the jobs that an earlier registry saved, whatever the limits are now; those of
  /// tenants that are no more are dropped.
  Status restore(std::span<const uint8_t> state);
  /// Other keys and limits from now on. Jobs of tenants that are no more end.
  void set_tenants(std::vector<TenantOptions> tenants);

  /// The pre-shared key of "tenant" or "tenant/job".
  std::optional<auth::Secret> key_of(const std::string& identity) const;

  Status create(const std::string& identity, const addend_control_job& job);
  /// Another connection that holds this worker's place already; 0: there is none.
  ConnectionId holder_of(ConnectionId from, const std::string& identity,
                         const addend_control_join& join) const;
  /// A worker has come. It is refused if another holds its place; otherwise it is asked to probe
  /// its path to the data threads.
  Status join(ConnectionId from, const std::string& identity, const net::Address& peer,
              const addend_control_join& join, std::vector<uint32_t> positions);
  /// It has; when it is the last one, all get their welcome. If nothing came back to it, all who
  /// wait are told so: the job cannot begin.
  Status path(ConnectionId from, const addend_control_path& path);
  /// The number of a table of the worker's job.
  Result<uint32_t> table(ConnectionId from, const addend_control_table& table);
  void leave(ConnectionId from);
  /// A connection broke without a goodbye. `silent`: its peer's host no longer answers, so the
  /// worker may be alive, and come back.
  void lost(ConnectionId from, bool silent = false);
  /// An epoch ended in the data plane.
  void ended(const addend_frame_header& notice);
  Status drain(const std::string& identity, const addend_control_drain& which);

  /// The next server has let us in: all workers get their welcome. Or not, and they are told why.
  void upstream_joined(uint32_t number, Result<std::shared_ptr<Upstream>> upstream);
  /// Its epoch is over, so ours is.
  void upstream_ended(uint32_t number, const addend_control_ended& ended);
  /// It has gone without a word. So do we, as far as the job's workers can tell: they come back
  /// with their positions, and we go there with them.
  void upstream_gone(uint32_t number);

  /// Tells the switch, if there is one, which jobs it has.
  Status publish() const;

  /// Takes nobody in any more; jobs without workers go.
  void close();
  /// Ends every job.
  void end_all();
  bool empty() const { return jobs_.empty(); }

  /// Whether this connection is a worker of some job.
  bool is_worker(ConnectionId connection) const { return workers_.count(connection) > 0; }
  /// How many connections an identity may have, and its tenant, of `all` that the server has; and
  /// bytes of messages that are not whole yet. kUnavailable if it is of no tenant.
  struct ConnectionLimits {
    uint32_t identity = 0, tenant = 0;
    uint64_t unfinished_bytes = 0;
  };
  Result<ConnectionLimits> connection_limits(const std::string& identity, uint32_t all) const;
  /// The bytes of the longest message that an identity may send.
  std::size_t longest_message(const std::string& identity) const;

  std::vector<JobView> jobs() const;
  /// Those that this identity may see.
  std::vector<JobView> jobs_of(const std::string& identity) const;

 private:
  struct Member {
    ConnectionId connection = 0;  // 0: nobody
    net::Address address;
    std::vector<uint32_t> positions;
    std::shared_ptr<Probe> probe;  // from its join on; the last ones may be late
    uint32_t payload_bytes = 0;    // that its path carries; 0: is not known yet
  };
  struct Job {
    JobOptions options;
    std::string tenant;
    bool transient = false;  // made by its workers
    bool draining = false;
    uint32_t epoch = 0;          // 0: gathering
    uint32_t past_epoch = 0;     // ended, but still answered with its notice
    uint32_t uplink = 0;         // a leaf: joining or in the next server's epoch; 0: neither
    uint32_t first_leaf = 0;     // the next server's first, if that is a leaf, too
    uint32_t payload_bytes = 0;  // of the epoch
    uint32_t first_worker = 0;   // of the members, in a tree
    uint32_t first_cell = 0;     // of its slots in the switch
    std::string switch_text;     // what the switch has to know of the epoch
    std::vector<Member> members;
    std::vector<aggregate::Table> tables;
    uint64_t memory_bytes = 0;
  };
  using Key = std::pair<std::string, std::string>;  // tenant, name
  // A job of its workers goes with them and comes back with them.
  static bool is_kept(const Job& job) { return !job.transient || job.draining; }

  const TenantOptions* tenant_of(const std::string& identity) const;
  uint64_t memory_of(const JobOptions& options) const;
  Status admit(const TenantOptions& tenant, const JobOptions& options) const;
  Result<Key> job_to_drain(const std::string& identity, const addend_control_drain& which) const;
  Job& add(const std::string& tenant, const JobOptions& options);
  void erase(const Key& key);
  Status save() const;
  void end_job(const Key& key);
  Result<Job*> job_to_join(const std::string& identity, const addend_control_join& join);
  Status ask_for_path(Job& job, uint32_t worker);
  Error refuse_path(Job& job, uint32_t worker);
  Status begin(Job& job);
  Status ask_upstream(Job& job, const Resume& resume);
  Status start_epoch(Job& job, const Resume& resume, std::shared_ptr<Upstream> upstream);
  Result<std::shared_ptr<JobEpoch>> make_epoch(const Job& job, const auth::Secret& secret,
                                               std::shared_ptr<Upstream> upstream) const;
  Result<std::vector<aggregate::Slots>> make_parts(const aggregate::SlotsOptions& job,
                                                   std::span<const uint32_t> positions) const;
  Status send_welcomes(Job& job, const JobEpoch& epoch, const auth::Secret& secret,
                       const Resume& resume);
  void end_epoch(Job& job, addend_notice why, uint32_t worker);
  /// A leaf has some of a job's workers: which are they here? Otherwise as they are.
  Result<addend_control_join> at_home(addend_control_join join) const;
  Status to_home(addend_control_job& job, uint32_t& first_worker) const;
  /// Whether a switch can fold such a job.
  Status check_switch(const JobOptions& options) const;
  Status check_reachable(const net::Address& worker) const;
  Status place_in_switch(Job& job, const JobEpoch& epoch) const;
  Result<uint32_t> free_cells(uint32_t slots) const;
  void republish() const;
  Job* job_of_uplink(uint32_t number);
  void leave_upstream(Job& job, bool done);
  void dismiss(Job& job, const Error& error, uint32_t but);
  /// REQUIRES: the connection is one of the job's workers'.
  static uint32_t number_of(const Job& job, ConnectionId connection);
  void forget(Job& job, ConnectionId connection);
  void let_go(const Key& key);
  void remove_if_done(const Key& key);
  void log(LogLevel level, std::string_view event, const Job& job, uint32_t worker) const;

  std::vector<TenantOptions> tenants_;
  uint32_t boot_;
  DataThreads& threads_;
  MessageSink& sink_;
  LogSink log_;
  SaveState save_;
  NextServer* next_;
  SwitchOptions in_switch_;
  uint32_t uplinks_ = 0;  // numbers that were given
  bool closed_ = false;
  std::map<Key, Job> jobs_;
  std::map<ConnectionId, Key> workers_;
  std::set<uint32_t> used_epochs_;
};

}  // namespace addend::service
