// SPDX-License-Identifier: Apache-2.0
// addend job: create, list and drain jobs of an aggregation server.
#include <chrono>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "addend/service.h"
#include "apps/addend/command.h"
#include "apps/addend/key_file.h"
#include "apps/addend/table.h"

namespace addend::cli {
namespace {

struct JobCommand {
  AccessOptions access;
  JobOptions job;
  double patience_s = 0;
  std::string job_key_file;
  bool no_floats = false;
  bool json = false;
};

int run_create(JobCommand& options) {
  const auto access = make_access(options.access);
  if (!access) return fail(access.error());
  options.job.patience = std::chrono::nanoseconds(static_cast<int64_t>(options.patience_s * 1e9));
  options.job.floats = !options.no_floats;
  if (!options.job_key_file.empty()) {
    const auto key = read_key_file(options.job_key_file);
    if (!key) return fail(key.error());
    options.job.key = *key;
  }
  const Status status = create_job(*access, options.job);
  if (!status) return fail(status.error());
  fmt::print("job {} for {} workers, {} slots\n", options.job.name, options.job.world,
             options.job.slots);
  return 0;
}

std::vector<uint32_t> workers_in(uint64_t bits) {
  std::vector<uint32_t> workers;
  for (uint32_t w = 0; w < 64; ++w) {
    if ((bits >> w & 1) != 0) workers.push_back(w);
  }
  return workers;
}

void print_jobs(const std::vector<JobInfo>& jobs) {
  const std::vector<Column> columns = {
      {"tenant", Align::kLeft, 12},  {"job", Align::kLeft, 20},
      {"state", Align::kLeft, 8},    {"workers", Align::kRight, 7},
      {"slots", Align::kRight, 6},   {"turns", Align::kRight, 12},
      {"refused", Align::kRight, 9}, {"waits for workers", Align::kLeft, 17}};
  fmt::print("{}\n", format_header(columns));
  for (const JobInfo& job : jobs) {
    fmt::print(
        "{}\n",
        format_row(columns, {job.tenant, job.name, job.epoch == 0 ? "waiting" : "running",
                             fmt::format("{}/{}", job.joined, job.world), std::to_string(job.slots),
                             std::to_string(job.turns), std::to_string(job.refused),
                             fmt::format("{}", fmt::join(workers_in(job.waited_for), ", "))}));
  }
}

int run_list(const JobCommand& options) {
  const auto access = make_access(options.access);
  if (!access) return fail(access.error());
  const auto jobs = list_jobs(*access);
  if (!jobs) return fail(jobs.error());
  if (!options.json) {
    print_jobs(*jobs);
    return 0;
  }
  nlohmann::json document = nlohmann::json::array();
  for (const JobInfo& job : *jobs) {
    document.push_back({{"tenant", job.tenant},
                        {"job", job.name},
                        {"epoch", job.epoch},
                        {"world", job.world},
                        {"joined", job.joined},
                        {"slots", job.slots},
                        {"turns", job.turns},
                        {"refused", job.refused},
                        {"waits_for", workers_in(job.waited_for)}});
  }
  fmt::print("{}\n", document.dump(2));
  return 0;
}

int run_drain(const JobCommand& options) {
  const auto access = make_access(options.access);
  if (!access) return fail(access.error());
  const Status status = drain_job(*access, options.job.name);
  if (!status) return fail(status.error());
  fmt::print("job {} takes no more workers and goes with its last one\n", options.job.name);
  return 0;
}

void add_create(CLI::App& parent, const std::shared_ptr<JobCommand>& options, Exit& exit) {
  CLI::App* command = parent.add_subcommand("create", "Make a job that waits for its workers");
  command->add_option("name", options->job.name)->required();
  command->add_option("--workers", options->job.world)->required()->check(CLI::Range(1, 64));
  command->add_option("--slots", options->job.slots, "contributions in flight")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--payload", options->job.payload_bytes, "bytes; 8832 for an MTU of 9000")
      ->check(CLI::Range(8, 8832))
      ->capture_default_str();
  command->add_option("--patience", options->patience_s, "seconds a turn waits; 0: for ever")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--quorum", options->job.quorum, "workers that suffice then; 0: all")
      ->capture_default_str();
  command->add_option("--job-key", options->job_key_file, "file with a key for this job's workers");
  command->add_flag("--no-floats", options->no_floats, "integers and bits only");
  add_access_options(*command, options->access);
  command->callback([options, &exit] { exit.code = run_create(*options); });
}

}  // namespace

void add_job_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("job", "Create, list and drain jobs of a server");
  command->require_subcommand(1);
  auto options = std::make_shared<JobCommand>();
  add_create(*command, options, exit);
  CLI::App* list = command->add_subcommand("list", "Jobs that this identity may see");
  list->add_flag("--json", options->json, "print one JSON document");
  add_access_options(*list, options->access);
  list->callback([options, &exit] { exit.code = run_list(*options); });
  CLI::App* drain =
      command->add_subcommand("drain", "Let a job's workers finish, and no new ones in");
  drain->add_option("name", options->job.name, "or TENANT/NAME, for who sees all")->required();
  add_access_options(*drain, options->access);
  drain->callback([options, &exit] { exit.code = run_drain(*options); });
  command->footer(
      "Example:\n"
      "  addend job create ring --workers 4 --patience 2 --aggregator agg:7700 --key lab.key\n");
}

}  // namespace addend::cli
