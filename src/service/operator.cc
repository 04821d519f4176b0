// SPDX-License-Identifier: Apache-2.0
// What an operator asks of a server.
#include <chrono>
#include <cstring>

#include "addend/service.h"
#include "auth/control_client.h"
#include "service/journal.h"

namespace addend {
namespace {

constexpr std::chrono::seconds kPatience{10};

auth::Deadline soon() { return std::chrono::steady_clock::now() + kPatience; }

Status expect_done(auth::ControlClient& client) {
  const auto answer = client.receive(soon());
  if (!answer) return answer.error();
  if (answer->type == ADDEND_CONTROL_DONE) return {};
  return make_error(Errc::kMalformed, "the server answered something else");
}

template <typename T>
Status ask(const ServiceAccess& access, addend_control_type type, const T& body) {
  auto client = auth::ControlClient::connect(access, soon());
  if (!client) return client.error();
  ADDEND_TRY((*client)->send(type, body, {}, soon()));
  return expect_done(**client);
}

// A name that was cut would be another one.
Status put_name(std::span<char> field, const std::string& name) {
  if (name.size() >= field.size()) {
    return make_error(Errc::kInvalidArgument,
                      "'" + name + "' is too long: names have at most 63 letters");
  }
  net::put_text(field, name);
  return {};
}

}  // namespace

Status create_job(const ServiceAccess& access, const JobOptions& options) {
  addend_control_job job = service::message_of(options);
  ADDEND_TRY(put_name(job.name, options.name));
  return ask(access, ADDEND_CONTROL_CREATE, job);
}

Status drain_job(const ServiceAccess& access, const std::string& name) {
  addend_control_drain which{};
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos) ADDEND_TRY(put_name(which.tenant, name.substr(0, slash)));
  ADDEND_TRY(put_name(which.name, slash == std::string::npos ? name : name.substr(slash + 1)));
  return ask(access, ADDEND_CONTROL_DRAIN, which);
}

Result<std::vector<JobInfo>> list_jobs(const ServiceAccess& access) {
  auto client = auth::ControlClient::connect(access, soon());
  if (!client) return client.error();
  ADDEND_TRY((*client)->send(ADDEND_CONTROL_LIST, soon()));
  std::vector<JobInfo> jobs;
  while (true) {
    const auto answer = (*client)->receive(soon());
    if (!answer) return answer.error();
    if (answer->type == ADDEND_CONTROL_DONE) return jobs;
    if (answer->type != ADDEND_CONTROL_JOB) {
      return make_error(Errc::kMalformed, "the server answered something else");
    }
    const auto job = answer->as<addend_control_status>();
    jobs.push_back({net::get_text(job.tenant), net::get_text(job.name), job.epoch, job.world,
                    job.joined, job.slots, job.turns, job.refused, job.waited_for});
  }
}

Result<ServiceKey> generate_service_key() {
  auto secret = auth::random_secret();
  if (!secret) return secret.error();
  ServiceKey key;
  std::memcpy(key.bytes.data(), secret->bytes().data(), key.bytes.size());
  return key;
}

}  // namespace addend
