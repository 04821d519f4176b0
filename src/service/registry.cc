// SPDX-License-Identifier: Apache-2.0
// The states of a job. In capitals: messages to its workers.
//
//   create or restore (an operator's job), or the first join of a tenant's worker (transient)
//     |
//     v            path: all workers are there and know what their paths carry: WELCOME
//   gathering ---------------------------------------------------------------------> running
//     |   ^                                                                             |
//     |   |  join: a worker has lost the epoch, so the others cannot finish it: ENDED   |
//     |   |    (one that comes back to a job with a quorum is refused)                  |
//     |   |  lost: a connection broke, and those left are no quorum: ENDED              |
//     |   |  ended: the data threads gave up (a turn that timed out or waits for one    |
//     |   |    that left, workers that differ, a path that became shorter): ENDED       |
//     |   '-----------------------------------------------------------------------------|
//     |                                                                                 |
//     |  nobody is there any more: leave, lost, a path that carries nothing (FAILED),   |
//     |  end_job                                                                        |
//     '-----------------------------------+---------------------------------------------'
//                                         v
//                        an operator's job: gathering again
//                        transient, draining, or the server closes: removed
//
// While a job is gathering, the data threads answer frames of its last epoch with the notice of its
// end. A draining job takes in only workers that come back with positions.
//
// The states of a worker's place (Member):
//
//   free --join: PROBE--> probing --path--> ready --all are: WELCOME--> in the epoch
//    ^                       ^                                               |
//    |                       '---- join, on the same connection, after ENDED '
//    '--- leave, lost, FAILED: from every state
#include "service/registry.h"

#include <algorithm>
#include <cstring>

#include "net/control_message.h"
#include "service/journal.h"

namespace addend::service {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  });
}

// Whether a job can be at all, whoever has it.
Status check(const JobOptions& options) {
  if (!is_name(options.name)) {
    return make_error(Errc::kInvalidArgument,
                      "a job's name has letters, digits, dots, dashes and underscores");
  }
  // A trial of one slot tells whether the rest makes sense.
  aggregate::SlotsOptions trial = slots_of(options, true);
  if (trial.slots == 0 || trial.slots > ADDEND_CONTROL_MAX_SLOTS) {
    return make_error(Errc::kInvalidArgument, "a job has 1 to 65536 slots");
  }
  trial.slots = 1;
  const auto slots = aggregate::Slots::create(trial);
  return slots ? Status{} : Status(slots.error());
}

}  // namespace

Registry::Registry(std::vector<TenantOptions> tenants, uint32_t boot, DataThreads& threads,
                   MessageSink& sink, LogSink log, SaveState save, NextServer* next,
                   SwitchOptions in_switch)
    : tenants_(std::move(tenants)),
      boot_(boot),
      threads_(threads),
      sink_(sink),
      log_(std::move(log)),
      save_(std::move(save)),
      next_(next),
      in_switch_(std::move(in_switch)) {}

Status Registry::restore(std::span<const uint8_t> state) {
  const auto jobs = decode_jobs(state);
  if (!jobs) return jobs.error();
  for (const KeptJob& kept : *jobs) {
    const Status good = check(kept.options);
    if (!good) {
      return make_error(Errc::kMalformed,
                        "saved job " + kept.options.name + " cannot be: " + good.error().message);
    }
    const TenantOptions* tenant = tenant_of(kept.tenant);
    if (tenant == nullptr || tenant->name != kept.tenant) {
      const LogField fields[] = {{"tenant", kept.tenant}, {"job", kept.options.name}};
      log_(LogLevel::kWarning, "saved job dropped: there is no such tenant", fields);
      continue;
    }
    Job& job = add(kept.tenant, kept.options);
    job.draining = kept.draining;
    log(LogLevel::kInfo, "job restored", job, ADDEND_FRAME_EVERYONE);
  }
  return {};
}

Status Registry::save() const {
  if (!save_) return {};
  std::vector<KeptJob> kept;
  for (const auto& [key, job] : jobs_) {
    if (is_kept(job)) kept.push_back({job.tenant, job.options, job.draining});
  }
  return save_(encode_jobs(kept));
}

void Registry::set_tenants(std::vector<TenantOptions> tenants) {
  tenants_ = std::move(tenants);
  std::vector<Key> orphans;
  for (const auto& [key, job] : jobs_) {
    if (tenant_of(key.first) == nullptr) orphans.push_back(key);
  }
  for (const Key& key : orphans)
    end_job(key);
}

const TenantOptions* Registry::tenant_of(const std::string& identity) const {
  const std::string name = identity.substr(0, identity.find('/'));
  const auto found = std::find_if(tenants_.begin(), tenants_.end(),
                                  [&](const TenantOptions& t) { return t.name == name; });
  return found == tenants_.end() ? nullptr : &*found;
}

std::optional<auth::Secret> Registry::key_of(const std::string& identity) const {
  const TenantOptions* tenant = tenant_of(identity);
  if (tenant == nullptr) return std::nullopt;
  const ServiceKey* key = &tenant->key;
  if (const std::size_t slash = identity.find('/'); slash != std::string::npos) {
    const auto job = jobs_.find({tenant->name, identity.substr(slash + 1)});
    if (job == jobs_.end()) return std::nullopt;
    key = &job->second.options.key;
  }
  if (!key->is_set()) return std::nullopt;
  return auth::Secret(key->bytes);
}

// Two banks a slot and, where no switch folds, as much for sums that are narrowed; a key for each
// worker, and the positions that each worker may bring and get.
uint64_t Registry::memory_of(const JobOptions& options) const {
  const bool by_switch = in_switch_.publish != nullptr;
  const uint64_t payload_bytes =
      by_switch ? std::min(options.payload_bytes, in_switch_.payload_bytes) : options.payload_bytes;
  return uint64_t{options.slots} * (by_switch ? 2 : 4) * (payload_bytes + 64) +
         uint64_t{options.world} * payload_bytes +
         uint64_t{options.world} * options.slots * 2 * sizeof(uint32_t);
}

Status Registry::admit(const TenantOptions& tenant, const JobOptions& options) const {
  if (closed_) return make_error(Errc::kUnavailable, "the server is draining");
  ADDEND_TRY(check(options));
  ADDEND_TRY(check_switch(options));
  if (options.floats && !tenant.floats) {
    return make_error(Errc::kUnsupported, "tenant " + tenant.name + " may not sum floats");
  }
  uint64_t jobs = 1, slots = options.slots, memory = memory_of(options);
  for (const auto& [key, job] : jobs_) {
    if (key.first != tenant.name) continue;
    ++jobs;
    slots += job.options.slots;
    memory += job.memory_bytes;
  }
  const auto beyond = [&](const char* what, uint64_t wanted, uint64_t limit) {
    return make_error(Errc::kCapacity, "tenant " + tenant.name + " would have " +
                                           std::to_string(wanted) + " " + what + ", and may have " +
                                           std::to_string(limit));
  };
  if (jobs > tenant.max_jobs) return beyond("jobs", jobs, tenant.max_jobs);
  if (slots > tenant.max_slots) return beyond("slots", slots, tenant.max_slots);
  if (memory > tenant.max_memory_bytes) {
    return beyond("bytes of slots and positions", memory, tenant.max_memory_bytes);
  }
  return {};
}

Status Registry::create(const std::string& identity, const addend_control_job& message) {
  const TenantOptions* tenant = tenant_of(identity);
  if (tenant == nullptr || identity != tenant->name) {
    return make_error(Errc::kUnavailable, "only a tenant may create jobs");
  }
  addend_control_job own = message;
  uint32_t first_worker = 0;
  ADDEND_TRY(to_home(own, first_worker));
  const JobOptions options = options_of(own);
  if (jobs_.count({tenant->name, options.name}) > 0) {
    return make_error(Errc::kInvalidArgument, "there is a job named " + options.name);
  }
  ADDEND_TRY(admit(*tenant, options));
  Job& job = add(tenant->name, options);
  job.first_worker = first_worker;
  // Before anybody is told: a job that was promised is there after a crash.
  const Status saved = save();
  if (!saved) {
    jobs_.erase({tenant->name, options.name});
    return saved;
  }
  log(LogLevel::kInfo, "job created", job, ADDEND_FRAME_EVERYONE);
  return {};
}

Registry::Job& Registry::add(const std::string& tenant, const JobOptions& options) {
  Job& job = jobs_[{tenant, options.name}];
  job.options = options;
  job.tenant = tenant;
  job.members.resize(options.world);
  job.memory_bytes = memory_of(options);
  return job;
}

void Registry::erase(const Key& key) {
  const bool kept = is_kept(jobs_.at(key));
  jobs_.erase(key);
  if (!kept) return;
  const Status saved = save();
  if (saved) return;
  const LogField fields[] = {
      {"tenant", key.first}, {"job", key.second}, {"why", saved.error().message}};
  log_(LogLevel::kError, "a job that is gone stays saved", fields);
}

Result<Registry::Job*> Registry::job_to_join(const std::string& identity,
                                             const addend_control_join& join) {
  const TenantOptions* tenant = tenant_of(identity);
  const std::string name = net::get_text(join.job.name);
  if (tenant == nullptr || (identity != tenant->name && identity != tenant->name + "/" + name)) {
    return make_error(Errc::kUnavailable, "'" + identity + "' may not join job " + name);
  }
  // Before a job is made for it, which nobody would ever leave.
  if (join.worker >= join.job.world || join.udp_port == 0 || join.udp_port > 65535) {
    return make_error(Errc::kInvalidArgument, "no such worker or port");
  }
  const Key key{tenant->name, name};
  const auto known = jobs_.find(key);
  const uint32_t slots = known == jobs_.end() ? join.job.slots : known->second.options.slots;
  if (join.positions != 0 && join.positions != slots) {
    return make_error(Errc::kMismatch, "job " + name + " has " + std::to_string(slots) +
                                           " slots now, and worker " + std::to_string(join.worker) +
                                           " comes with positions of " +
                                           std::to_string(join.positions));
  }
  if (known == jobs_.end()) {
    if (identity != tenant->name) return make_error(Errc::kUnavailable, "no job named " + name);
    // Workers take floats where they may; where not, they send integers.
    JobOptions wanted = options_of(join.job);
    wanted.floats = wanted.floats && tenant->floats;
    ADDEND_TRY(admit(*tenant, wanted));
    Job& made = add(tenant->name, wanted);
    made.transient = true;
    log(LogLevel::kInfo, "job created", made, ADDEND_FRAME_EVERYONE);
  }
  Job& job = jobs_.at(key);
  // Workers that were in it before the server restarted may come back to finish.
  if (closed_ || (job.draining && join.positions == 0)) {
    return make_error(Errc::kUnavailable, "job " + name + " is draining");
  }
  if (join.job.world != job.options.world) {
    return make_error(Errc::kMismatch, "worker " + std::to_string(join.worker) + " says " +
                                           std::to_string(join.job.world) + " workers, job " +
                                           name + " has " + std::to_string(job.options.world));
  }
  return &job;
}

ConnectionId Registry::holder_of(ConnectionId from, const std::string& identity,
                                 const addend_control_join& message) const {
  const TenantOptions* tenant = tenant_of(identity);
  const auto join = at_home(message);
  if (tenant == nullptr || !join) return 0;
  const auto found = jobs_.find({tenant->name, net::get_text(join->job.name)});
  if (found == jobs_.end() || join->worker >= found->second.members.size()) return 0;
  const ConnectionId there = found->second.members[join->worker].connection;
  return there == from ? 0 : there;
}

Status Registry::join(ConnectionId from, const std::string& identity, const net::Address& peer,
                      const addend_control_join& message, std::vector<uint32_t> positions) {
  const auto before = workers_.find(from);
  const bool held = holder_of(from, identity, message) != 0;
  auto own = at_home(message);
  if (!own) return own.error();
  const addend_control_join& join = *own;
  ADDEND_TRY(check_reachable(peer));
  if (before != workers_.end() && before->second.second != net::get_text(join.job.name)) {
    return make_error(Errc::kInvalidArgument, "a connection joins one job");
  }
  auto found = job_to_join(identity, join);
  if (!found) return found.error();
  Job& job = **found;
  const Key key{job.tenant, job.options.name};
  if (held) {
    log(LogLevel::kWarning, "worker refused: it is there already", job, join.worker);
    return make_error(Errc::kInvalidArgument,
                      "worker " + std::to_string(message.worker) + " of job " + job.options.name +
                          " is there already, at " + job.members[join.worker].address.to_string() +
                          ": another run has this name, or an old process has to be ended");
  }
  // It wants sums that it lacks; the others go on without it. When fewer than the quorum are left,
  // the epoch ends, and it can come back with those who have not heard of that.
  if (job.epoch != 0 && job.options.quorum > 0 && !positions.empty()) {
    return make_error(Errc::kUnavailable,
                      "worker " + std::to_string(message.worker) + " was left behind: job " +
                          job.options.name +
                          " went on at a quorum while its connection was broken; take the model's "
                          "state from another worker and join anew");
  }
  // Whoever joins a running epoch has lost it, so the others cannot finish it either.
  if (job.epoch != 0) end_epoch(job, ADDEND_NOTICE_CLOSED, join.worker);
  leave_upstream(job, false);
  job.first_worker = message.worker - join.worker;
  Member& member = job.members[join.worker];
  member.connection = from;
  member.address = peer;
  member.address.set_port(static_cast<uint16_t>(join.udp_port));
  member.positions = std::move(positions);
  member.payload_bytes = 0;
  workers_[from] = key;
  log(LogLevel::kInfo, "worker joined", job, join.worker);
  return ask_for_path(job, join.worker);
}

void Registry::forget(Job& job, ConnectionId connection) {
  for (Member& member : job.members) {
    if (member.connection == connection) member = {};
  }
  workers_.erase(connection);
}

uint32_t Registry::number_of(const Job& job, ConnectionId connection) {
  const auto member = std::find_if(job.members.begin(), job.members.end(),
                                   [&](const Member& m) { return m.connection == connection; });
  return static_cast<uint32_t>(member - job.members.begin());
}

void Registry::leave(ConnectionId from) {
  const auto worker = workers_.find(from);
  if (worker == workers_.end()) return;
  const Key key = worker->second;
  Job& job = jobs_.at(key);
  const uint32_t number = number_of(job, from);
  log(LogLevel::kInfo, "worker left", job, number);
  forget(job, from);
  // The epoch goes on: others may still have to fetch results that this worker is in.
  if (job.epoch != 0) threads_.leave(job.epoch, number);
  if (job.epoch == 0) leave_upstream(job, false);
  remove_if_done(key);
}

void Registry::lost(ConnectionId from, bool silent) {
  const auto found = workers_.find(from);
  if (found == workers_.end()) return;
  const Key key = found->second;
  Job& job = jobs_.at(key);
  const uint32_t worker = number_of(job, from);
  log(LogLevel::kWarning, "worker lost", job, worker);
  forget(job, from);
  // With a quorum the others go on without it, while they are one.
  const auto left = static_cast<uint32_t>(
      std::count_if(job.members.begin(), job.members.end(),
                    [](const Member& member) { return member.connection != 0; }));
  const bool enough = job.options.quorum > 0 && left >= job.options.quorum;
  // If it may come back, the others should, too: whoever hears of an end fails.
  if (job.epoch != 0 && !enough && silent && job.options.quorum > 0) {
    log(LogLevel::kWarning, "fewer than the quorum are left: they are let go", job, worker);
    return let_go(key);
  }
  if (job.epoch != 0 && !enough) end_epoch(job, ADDEND_NOTICE_CLOSED, worker);
  if (job.epoch == 0) leave_upstream(job, false);
  remove_if_done(key);
}

// As if this server had gone: workers come back, and go on together.
void Registry::let_go(const Key& key) {
  Job& job = jobs_.at(key);
  for (const Member& member : std::vector<Member>(job.members)) {
    if (member.connection == 0) continue;
    forget(job, member.connection);
    sink_.cut(member.connection);
  }
  remove_if_done(key);
}

void Registry::remove_if_done(const Key& key) {
  Job& job = jobs_.at(key);
  const bool anyone = std::any_of(job.members.begin(), job.members.end(),
                                  [](const Member& m) { return m.connection != 0; });
  if (anyone) return;
  leave_upstream(job, true);
  for (const uint32_t epoch : {job.epoch, job.past_epoch}) {
    if (epoch == 0) continue;
    threads_.remove(epoch);
    used_epochs_.erase(epoch);
  }
  job.epoch = job.past_epoch = 0;
  republish();
  if (!job.transient && !job.draining && !closed_) return;
  log(LogLevel::kInfo, "job removed", job, ADDEND_FRAME_EVERYONE);
  erase(key);
}

Result<Registry::Key> Registry::job_to_drain(const std::string& identity,
                                             const addend_control_drain& which) const {
  const std::string name = net::get_text(which.name), of = net::get_text(which.tenant);
  const TenantOptions* tenant = tenant_of(identity);
  std::vector<Key> found;
  for (const auto& [key, job] : jobs_) {
    const bool allowed = tenant != nullptr && identity == tenant->name &&
                         (tenant->sees_all || key.first == tenant->name);
    if (!allowed || key.second != name || (!of.empty() && key.first != of)) continue;
    if (of.empty() && key.first == identity) return key;
    found.push_back(key);
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) return make_error(Errc::kInvalidArgument, "no job named " + name);
  return make_error(Errc::kInvalidArgument, "several tenants have a job named " + name + ": say " +
                                                found[0].first + "/" + name + " or " +
                                                found[1].first + "/" + name);
}

Status Registry::drain(const std::string& identity, const addend_control_drain& which) {
  const auto key = job_to_drain(identity, which);
  if (!key) return key.error();
  Job& job = jobs_.at(*key);
  const bool before = job.draining;
  job.draining = true;
  const Status saved = save();
  if (!saved) {
    job.draining = before;
    return saved;
  }
  log(LogLevel::kInfo, "job draining", job, ADDEND_FRAME_EVERYONE);
  remove_if_done(*key);
  return {};
}

void Registry::close() {
  closed_ = true;
  std::vector<Key> keys;
  for (const auto& [key, job] : jobs_)
    keys.push_back(key);
  for (const Key& key : keys)
    remove_if_done(key);
}

void Registry::end_all() {
  closed_ = true;
  while (!jobs_.empty())
    end_job(Key(jobs_.begin()->first));
}

void Registry::end_job(const Key& key) {
  Job& job = jobs_.at(key);
  if (job.epoch != 0) end_epoch(job, ADDEND_NOTICE_CLOSED, ADDEND_FRAME_EVERYONE);
  for (Member& member : job.members) {
    workers_.erase(member.connection);
    member = {};
  }
  job.draining = true;
  remove_if_done(key);
}

Result<Registry::ConnectionLimits> Registry::connection_limits(const std::string& identity,
                                                               uint32_t all) const {
  const TenantOptions* tenant = tenant_of(identity);
  if (tenant == nullptr)
    return make_error(Errc::kUnavailable, "'" + identity + "' is no tenant of this server");
  // Equal parts, so that no tenant can take the place of another.
  const auto part = std::max(1u, all / static_cast<uint32_t>(tenants_.size()));
  ConnectionLimits limits;
  limits.tenant = tenant->max_connections > 0 ? tenant->max_connections : part;
  limits.identity = limits.tenant;
  limits.unfinished_bytes = tenant->max_memory_bytes;
  const auto job = jobs_.find({tenant->name, identity.substr(identity.find('/') + 1)});
  // With a job's key: its workers, and again when they come back before the old ones are gone.
  if (identity != tenant->name && job != jobs_.end())
    limits.identity = std::min(limits.tenant, 2 * job->second.options.world + 8);
  return limits;
}

std::size_t Registry::longest_message(const std::string& identity) const {
  const TenantOptions* tenant = tenant_of(identity);
  const uint32_t slots = tenant == nullptr ? 0 : tenant->max_slots;
  return sizeof(addend_control_join) +
         sizeof(uint32_t) * std::size_t{std::min<uint32_t>(slots, ADDEND_CONTROL_MAX_SLOTS)};
}

std::vector<JobView> Registry::jobs() const {
  std::vector<JobView> views;
  for (const auto& [key, job] : jobs_) {
    const auto joined = std::count_if(job.members.begin(), job.members.end(),
                                      [](const Member& m) { return m.connection != 0; });
    uint64_t waited_for = 0;
    for (uint32_t w = 0; job.epoch == 0 && w < job.options.world; ++w)
      waited_for |= uint64_t{job.members[w].payload_bytes == 0} << w;
    views.push_back({key.first, key.second, job.epoch, job.options.world,
                     static_cast<uint32_t>(joined), job.options.slots, waited_for,
                     job.epoch != 0 ? job.payload_bytes : job.options.payload_bytes, job.draining});
  }
  return views;
}

std::vector<JobView> Registry::jobs_of(const std::string& identity) const {
  std::vector<JobView> views = jobs();
  const TenantOptions* tenant = tenant_of(identity);
  const bool all = tenant != nullptr && tenant->sees_all && identity == tenant->name;
  std::erase_if(views, [&](const JobView& view) {
    return !all && view.tenant != identity && view.tenant + "/" + view.name != identity;
  });
  return views;
}

void Registry::log(LogLevel level, std::string_view event, const Job& job, uint32_t worker) const {
  std::vector<LogField> fields = {
      {"tenant", job.tenant}, {"job", job.options.name}, {"epoch", std::to_string(job.epoch)}};
  if (worker != ADDEND_FRAME_EVERYONE) fields.push_back({"worker", std::to_string(worker)});
  log_(level, event, fields);
}

}  // namespace addend::service
