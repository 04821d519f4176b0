// SPDX-License-Identifier: Apache-2.0
// Epochs of a job: the paths of its workers before one begins, its keys and parts, its tables, its
// end.
#include <algorithm>
#include <bit>
#include <cstring>

#include "net/control_message.h"
#include "service/registry.h"

namespace addend::service {
namespace {

constexpr uint32_t kFloatOps =
    1u << ADDEND_OP_SUM_F32 | 1u << ADDEND_OP_SUM_BF16 | 1u << ADDEND_OP_SUM_F16;
constexpr uint32_t kAllOps = (1u << ADDEND_OP_COUNT) - 1;
// What a register of a switch can do with 32 bits: also several short lanes that do not overflow.
constexpr uint32_t kSwitchOps = 1u << ADDEND_OP_SUM_I32 | 1u << ADDEND_OP_SUM_U8 |
                                1u << ADDEND_OP_SUM_U16 | 1u << ADDEND_OP_OR_U64 |
                                1u << ADDEND_OP_MAX_U32;

template <typename Members>
Resume resume_of(const Members& members, uint32_t slots) {
  const auto anew = [](const auto& member) { return member.positions.empty(); };
  if (std::all_of(members.begin(), members.end(), anew)) return {};
  Resume resume;
  resume.positions.assign(slots, ~0u);
  std::vector<uint32_t> most(slots, 0);
  for (const auto& member : members) {
    if (member.positions.size() != slots) return {ADDEND_CONTROL_FRESH, {}};
    for (uint32_t s = 0; s < slots; ++s) {
      resume.positions[s] = std::min(resume.positions[s], member.positions[s]);
      most[s] = std::max(most[s], member.positions[s]);
    }
  }
  for (uint32_t s = 0; s < slots; ++s) {
    if (most[s] - resume.positions[s] > 1) return {ADDEND_CONTROL_FRESH, {}};
  }
  return resume;
}

template <typename T>
std::span<const uint8_t> bytes_of(const T& body) {
  return {reinterpret_cast<const uint8_t*>(&body), sizeof(T)};
}

}  // namespace

aggregate::SlotsOptions slots_of(const JobOptions& options, bool floats_allowed) {
  aggregate::SlotsOptions slots;
  slots.world = options.world;
  slots.slots = options.slots;
  slots.payload_bytes = options.payload_bytes;
  slots.ops = options.floats && floats_allowed ? kAllOps : kAllOps & ~kFloatOps;
  slots.patience_ns = static_cast<uint64_t>(options.patience.count());
  slots.quorum = options.quorum;
  return slots;
}

Status Registry::ask_for_path(Job& job, uint32_t worker) {
  Member& member = job.members[worker];
  auto secret = auth::random_secret();
  auto number = auth::random_number();
  if (!secret || !number) return secret ? number.error() : secret.error();
  auto key = auth::FrameKey::create(*secret, job.options.payload_bytes);
  if (!key) return key.error();
  member.probe = std::make_shared<Probe>();
  member.probe->number = *number;
  member.probe->boot = boot_;
  member.probe->payload_bytes = job.options.payload_bytes;
  member.probe->worker = member.address;
  member.probe->key = *std::move(key);
  threads_.expect(member.probe);
  addend_control_probe message{};
  message.number = *number;
  message.boot = boot_;
  message.payload_bytes = job.options.payload_bytes;
  message.threads = std::min(threads_.threads(), job.options.slots);
  for (uint32_t t = 0; t < message.threads; ++t)
    message.port[t] = threads_.port(t);
  std::memcpy(message.secret, secret->bytes().data(), auth::Secret::kBytes);
  sink_.send(member.connection, ADDEND_CONTROL_PROBE, bytes_of(message), {});
  return {};
}

Status Registry::path(ConnectionId from, const addend_control_path& path) {
  const auto found = workers_.find(from);
  if (found == workers_.end()) {
    return make_error(Errc::kUnavailable, "a path belongs to a worker that has joined");
  }
  Job& job = jobs_.at(found->second);
  const auto member = std::find_if(job.members.begin(), job.members.end(),
                                   [&](const Member& m) { return m.connection == from; });
  if (job.epoch != 0 || job.uplink != 0 || member->probe == nullptr ||
      path.payload_bytes > job.options.payload_bytes || path.payload_bytes % 8 != 0) {
    return make_error(Errc::kMalformed, "not the path that was asked for");
  }
  if (path.payload_bytes == 0) {
    return refuse_path(job, static_cast<uint32_t>(member - job.members.begin()));
  }
  member->payload_bytes = path.payload_bytes;
  const bool all = std::all_of(job.members.begin(), job.members.end(),
                               [](const Member& m) { return m.payload_bytes > 0; });
  if (!all) return {};
  const Status begun = begin(job);
  if (!begun) dismiss(job, begun.error(), static_cast<uint32_t>(member - job.members.begin()));
  return begun;
}

// The caller's own connection gets the error as the answer to its message.
Error Registry::refuse_path(Job& job, uint32_t worker) {
  const Probe& probe = *job.members[worker].probe;
  const std::string who = "worker " + std::to_string(worker);
  const uint64_t heard = probe.heard;
  const auto thread = static_cast<uint32_t>(std::countr_one(heard));
  std::string text;
  if (heard == 0 && probe.misdirected) {
    text = who +
           "'s datagrams come from another address than its connection: is there an address "
           "translation between it and the server?";
  } else if (thread < std::min(threads_.threads(), job.options.slots)) {
    text = who + "'s datagrams do not arrive at the server: UDP port " +
           std::to_string(threads_.port(thread)) + " blocked?";
  } else {
    text = "the server's datagrams do not arrive at " + who + ": UDP port " +
           std::to_string(job.members[worker].address.port()) + " blocked?";
  }
  log(LogLevel::kWarning, "path blocked: " + text, job, worker);
  const Error error = make_error(Errc::kUnavailable, text);
  dismiss(job, error, worker);
  return error;
}

// Tells the job's workers, but one, and forgets them all.
void Registry::dismiss(Job& job, const Error& error, uint32_t but) {
  addend_control_failed failed{};
  failed.code = static_cast<uint32_t>(error.code);
  net::put_text(failed.text, error.message);
  const Key key{job.tenant, job.options.name};
  for (uint32_t w = 0; w < job.options.world; ++w) {
    const ConnectionId connection = job.members[w].connection;
    if (connection == 0) continue;
    if (w != but) sink_.send(connection, ADDEND_CONTROL_FAILED, bytes_of(failed), {});
    forget(job, connection);
  }
  remove_if_done(key);
}

Result<std::shared_ptr<JobEpoch>> Registry::make_epoch(const Job& job, const auth::Secret& secret,
                                                       std::shared_ptr<Upstream> upstream) const {
  const TenantOptions& tenant = *tenant_of(job.tenant);
  auto epoch = std::make_shared<JobEpoch>();
  epoch->slots = slots_of(job.options, tenant.floats);
  for (const Member& member : job.members)
    epoch->slots.payload_bytes = std::min(epoch->slots.payload_bytes, member.payload_bytes);
  if (upstream) {
    epoch->slots.relays = true;
    epoch->slots.ops &= upstream->welcome.ops;
    epoch->slots.payload_bytes =
        std::min(epoch->slots.payload_bytes, upstream->welcome.payload_bytes);
    epoch->upstream = std::move(upstream);
  }
  if (in_switch_.publish) {
    epoch->slots.ops &= kSwitchOps;
    epoch->slots.payload_bytes = std::min(epoch->slots.payload_bytes, in_switch_.payload_bytes);
  }
  epoch->slots.boot = boot_;
  epoch->packets_per_s = tenant.packets_per_s;
  while (epoch->slots.epoch == 0 || used_epochs_.count(epoch->slots.epoch) > 0) {
    auto number = auth::random_number();
    if (!number) return number.error();
    epoch->slots.epoch = *number;
  }
  const auto key_for = [&](const char* purpose, uint32_t number) -> Result<auth::FrameKey> {
    auto derived = auth::derive_secret(secret, purpose, number);
    if (!derived) return derived.error();
    return auth::FrameKey::create(*derived, epoch->slots.payload_bytes);
  };
  for (uint32_t w = 0; w < job.options.world; ++w) {
    auto key = key_for("worker", w);
    if (!key) return key.error();
    epoch->worker_keys.push_back(*std::move(key));
    epoch->workers.push_back(job.members[w].address);
  }
  auto result_key = key_for("result", 0);
  if (!result_key) return result_key.error();
  epoch->result_key = *std::move(result_key);
  return epoch;
}

// Slot s belongs to thread s * threads / slots.
Result<std::vector<aggregate::Slots>> Registry::make_parts(
    const aggregate::SlotsOptions& job, std::span<const uint32_t> positions) const {
  std::vector<aggregate::Slots> parts;
  const auto attendance = std::make_shared<aggregate::Attendance>();
  const uint32_t threads = std::min(threads_.threads(), job.slots);
  for (uint32_t t = 0; t < threads; ++t) {
    aggregate::SlotsOptions part = job;
    part.first_slot = (t * job.slots + threads - 1) / threads;
    part.slots = ((t + 1) * job.slots + threads - 1) / threads - part.first_slot;
    auto slots = aggregate::Slots::create(part, attendance);
    if (!slots) return slots.error();
    if (!positions.empty()) slots->begin_at(positions);
    parts.push_back(*std::move(slots));
  }
  return parts;
}

// All workers are here, and know what their paths carry.
Status Registry::begin(Job& job) {
  const Resume resume = resume_of(job.members, job.options.slots);
  return next_ == nullptr ? start_epoch(job, resume, nullptr) : ask_upstream(job, resume);
}

Status Registry::start_epoch(Job& job, const Resume& resume, std::shared_ptr<Upstream> upstream) {
  auto secret = auth::random_secret();
  if (!secret) return secret.error();
  auto epoch = make_epoch(job, *secret, std::move(upstream));
  if (!epoch) return epoch.error();
  aggregate::SlotsOptions own = (*epoch)->slots;
  if (in_switch_.publish) own.ops = 0;  // nothing is folded here
  auto parts = make_parts(own, resume.positions);
  if (!parts) return parts.error();
  ADDEND_TRY(place_in_switch(job, **epoch));
  if (job.past_epoch != 0) {
    threads_.remove(job.past_epoch);
    used_epochs_.erase(job.past_epoch);
    job.past_epoch = 0;
  }
  job.epoch = (*epoch)->slots.epoch;
  job.payload_bytes = (*epoch)->slots.payload_bytes;
  job.tables.clear();
  used_epochs_.insert(job.epoch);
  threads_.start(*epoch, *std::move(parts));
  ADDEND_TRY(publish());
  log(LogLevel::kInfo, "epoch started", job, ADDEND_FRAME_EVERYONE);
  return send_welcomes(job, **epoch, *secret, resume);
}

Status Registry::send_welcomes(Job& job, const JobEpoch& epoch, const auth::Secret& secret,
                               const Resume& resume) {
  addend_control_welcome welcome{};
  welcome.epoch = epoch.slots.epoch;
  welcome.boot = boot_;
  welcome.slots = job.options.slots;
  welcome.payload_bytes = epoch.slots.payload_bytes;
  welcome.ops = epoch.slots.ops;
  welcome.threads = std::min(threads_.threads(), job.options.slots);
  welcome.flags = resume.flags;
  if (in_switch_.publish) welcome.flags |= ADDEND_CONTROL_SWITCH;
  if (epoch.slots.relays) welcome.flags |= ADDEND_CONTROL_LEAF;
  welcome.positions = static_cast<uint32_t>(resume.positions.size());
  welcome.patience_ns = epoch.slots.patience_ns;
  welcome.quorum = epoch.slots.quorum;
  welcome.packets_per_s = epoch.packets_per_s;
  welcome.first_worker = job.first_worker;
  welcome.world = job.options.world;
  for (uint32_t t = 0; t < welcome.threads; ++t)
    welcome.port[t] = threads_.port(t);
  auto result = auth::derive_secret(secret, "result", 0);
  if (!result) return result.error();
  std::memcpy(welcome.result_secret, result->bytes().data(), auth::Secret::kBytes);
  for (uint32_t w = 0; w < job.options.world; ++w) {
    auto own = auth::derive_secret(secret, "worker", w);
    if (!own) return own.error();
    std::memcpy(welcome.worker_secret, own->bytes().data(), auth::Secret::kBytes);
    job.members[w].payload_bytes = 0;
    job.members[w].positions = std::vector<uint32_t>();  // clear() would keep the memory
    sink_.send(job.members[w].connection, ADDEND_CONTROL_WELCOME, bytes_of(welcome),
               resume.positions);
  }
  return {};
}

Result<uint32_t> Registry::table(ConnectionId from, const addend_control_table& message) {
  const auto worker = workers_.find(from);
  if (worker == workers_.end() || jobs_.at(worker->second).epoch == 0) {
    return make_error(Errc::kUnavailable, "tables belong to a running epoch");
  }
  Job& job = jobs_.at(worker->second);
  aggregate::Table table;
  std::copy_n(message.entries, table.size(), table.begin());
  const auto known = std::find(job.tables.begin(), job.tables.end(), table);
  if (known != job.tables.end()) return static_cast<uint32_t>(known - job.tables.begin());
  if (job.tables.size() == ADDEND_MAX_JOB_TABLES) {
    return make_error(Errc::kCapacity, "a job has at most 16 tables");
  }
  const auto number = static_cast<uint32_t>(job.tables.size());
  job.tables.push_back(table);
  threads_.set_table(job.epoch, number, table);
  return number;
}

void Registry::end_epoch(Job& job, addend_notice why, uint32_t worker) {
  threads_.end(job.epoch, why, worker);
  leave_upstream(job, false);
  job.past_epoch = job.epoch;
  job.epoch = 0;
  republish();
  const addend_control_ended body{static_cast<uint32_t>(why), worker};
  for (const Member& member : job.members) {
    if (member.connection != 0)
      sink_.send(member.connection, ADDEND_CONTROL_ENDED, bytes_of(body), {});
  }
  log(LogLevel::kWarning, "epoch ended", job, worker);
}

void Registry::ended(const addend_frame_header& notice) {
  for (auto& [key, job] : jobs_) {
    if (job.epoch == notice.epoch) {
      return end_epoch(job, static_cast<addend_notice>(notice.op), notice.worker);
    }
  }
}

}  // namespace addend::service
