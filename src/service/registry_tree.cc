// SPDX-License-Identifier: Apache-2.0
// Jobs of a leaf: which of a job's workers are its own, and its standing with the next server.
//
//   gathering --all workers are here--> asking upstream --upstream_joined--> running
//      ^                                     |                                  |
//      |   a worker goes, or comes anew; upstream_joined with an error: FAILED  |
//      |<------------------------------------'                                  |
//      |   upstream_ended: ENDED, naming the leaf that it was about             |
//      |   upstream_gone: connections are cut, and workers come back            |
//      |   our own epoch ends: we leave, and the other leaves are told          |
//      '------------------------------------------------------------------------'
#include <algorithm>

#include "net/control_message.h"
#include "service/registry.h"

namespace addend::service {

// Leaf l has the workers from l * world / leaves on.
Status Registry::to_home(addend_control_job& job, uint32_t& first_worker) const {
  first_worker = 0;
  if (next_ == nullptr) return {};
  const uint32_t leaf = next_->leaf(), leaves = next_->leaves();
  const std::string name = "job " + net::get_text(job.name);
  if (job.world < leaves || job.world > ADDEND_CONTROL_MAX_WORKERS) {
    return make_error(Errc::kInvalidArgument, name + " has " + std::to_string(job.world) +
                                                  " workers: a tree of " + std::to_string(leaves) +
                                                  " leaves has at least one each, and at most " +
                                                  std::to_string(ADDEND_CONTROL_MAX_WORKERS));
  }
  if (job.quorum > 0) {
    return make_error(
        Errc::kUnsupported,
        name + " wants a quorum, and this server is a leaf: a job of a tree has none");
  }
  first_worker = leaf * job.world / leaves;
  job.world = (leaf + 1) * job.world / leaves - first_worker;
  return {};
}

Result<addend_control_join> Registry::at_home(addend_control_join join) const {
  uint32_t first = 0;
  const uint32_t world = join.job.world;
  ADDEND_TRY(to_home(join.job, first));
  if (next_ == nullptr) return join;
  if (join.worker < first || join.worker - first >= join.job.world) {
    return make_error(Errc::kInvalidArgument,
                      "worker " + std::to_string(join.worker) + " of " + std::to_string(world) +
                          " is not one of this leaf's (" + std::to_string(next_->leaf()) + " of " +
                          std::to_string(next_->leaves()) + "), which are " +
                          std::to_string(first) + " to " +
                          std::to_string(first + join.job.world - 1));
  }
  join.worker -= first;
  return join;
}

Registry::Job* Registry::job_of_uplink(uint32_t number) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const auto& one) { return one.second.uplink == number; });
  return found == jobs_.end() ? nullptr : &found->second;
}

void Registry::leave_upstream(Job& job, bool done) {
  if (job.uplink == 0) return;
  next_->leave(job.uplink, done);
  job.uplink = 0;
}

Status Registry::ask_upstream(Job& job, const Resume& resume) {
  // Tenants' jobs may have the same name here, and all are one tenant's there.
  const std::string name = job.tenant + "." + job.options.name;
  if (name.size() >= ADDEND_CONTROL_NAME_BYTES) {
    dismiss(job,
            make_error(Errc::kInvalidArgument,
                       "'" + name + "' is too long for the name of a job at the next server"),
            ADDEND_FRAME_EVERYONE);
    return {};
  }
  JobOptions options = job.options;
  for (const Member& member : job.members)
    options.payload_bytes = std::min(options.payload_bytes, member.payload_bytes);
  job.uplink = ++uplinks_;
  log(LogLevel::kInfo, "joining the next server", job, ADDEND_FRAME_EVERYONE);
  next_->join(job.uplink, name, options, resume.positions);
  return {};
}

void Registry::upstream_joined(uint32_t number, Result<std::shared_ptr<Upstream>> upstream) {
  Job* job = job_of_uplink(number);
  if (job == nullptr) return;
  Status status = upstream ? Status() : Status(upstream.error());
  if (upstream) {
    const addend_control_welcome& welcome = (*upstream)->welcome;
    const Resume resume{welcome.flags, (*upstream)->positions};
    job->first_leaf = welcome.first_worker;
    if (welcome.slots != job->options.slots) {
      status =
          make_error(Errc::kMismatch, "job " + job->tenant + "." + job->options.name + " has " +
                                          std::to_string(welcome.slots) + " slots there, and " +
                                          std::to_string(job->options.slots) + " here");
    } else if (welcome.quorum > 0) {
      status = make_error(Errc::kUnsupported, "job " + job->tenant + "." + job->options.name +
                                                  " has a quorum there: a job of a tree has none");
    } else {
      status = start_epoch(*job, resume, *std::move(upstream));
    }
  }
  if (status) return;
  leave_upstream(*job, false);
  const Error error = make_error(status.error().code, "next server: " + status.error().message);
  log(LogLevel::kWarning, error.message, *job, ADDEND_FRAME_EVERYONE);
  dismiss(*job, error, ADDEND_FRAME_EVERYONE);
}

void Registry::upstream_ended(uint32_t number, const addend_control_ended& ended) {
  Job* job = job_of_uplink(number);
  if (job == nullptr || job->epoch == 0) return;
  // The next server counts its own; what it heard from above has its number in that level.
  const bool is_own =
      ended.worker != ADDEND_FRAME_EVERYONE && (ended.notice & ADDEND_NOTICE_LEAF) == 0;
  end_epoch(*job, static_cast<addend_notice>(ended.notice | (is_own ? ADDEND_NOTICE_LEAF : 0)),
            ended.worker + (is_own ? job->first_leaf : 0));
}

void Registry::upstream_gone(uint32_t number) {
  Job* job = job_of_uplink(number);
  if (job == nullptr) return;
  log(LogLevel::kWarning, "the next server is gone", *job, ADDEND_FRAME_EVERYONE);
  let_go({job->tenant, job->options.name});
}

}  // namespace addend::service
