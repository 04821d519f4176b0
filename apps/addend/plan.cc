// SPDX-License-Identifier: Apache-2.0
// addend plan: whether compressing gradients pays for a job on a network, with what, and by how
// much.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/addend/calibration.h"
#include "apps/addend/codecs.h"
#include "apps/addend/command.h"
#include "apps/addend/gradient_files.h"
#include "apps/addend/output.h"
#include "apps/addend/plan_page.h"
#include "apps/addend/plan_report.h"

namespace addend::cli {

namespace {

constexpr double kBytesPerGbit = 1.25e8;
constexpr double kBucketElements = 25.0 * (1 << 20) / 4;  // as DDP cuts gradients

struct PlanOptions {
  CalibrationOptions measure;
  std::string calibration, save, job, out, html;
  std::vector<std::string> gradients, engines;
  std::vector<double> buckets;
  double elements = 0, density = 1, backward_ms = 0, rest_ms = 0, cores = 0;
  double gbit = 10, server_gbit = 0, latency_us = 50;
  uint32_t workers = 4, fan_in = 16;
  std::string floor = "safe";
  bool json = false;
};

/// Buckets are ready in their order, when the backward pass has come so far.
void spread(std::vector<double> elements, double backward_s, control::Job& job) {
  double all = 0, done = 0;
  for (const double count : elements)
    all += count;
  for (const double count : elements) {
    done += count;
    job.buckets.push_back({count, backward_s * done / all, 0});
  }
}

std::vector<double> as_ddp_cuts(double elements) {
  std::vector<double> out;
  for (; elements > kBucketElements; elements -= kBucketElements)
    out.push_back(kBucketElements);
  if (elements > 0) out.push_back(elements);
  return out;
}

/// A job as addend.torch.advise records it.
Status read_job(const std::string& path, control::Job& job) {
  const auto text = read_text(path);
  ADDEND_TRY(text);
  try {
    const auto from = nlohmann::json::parse(*text);
    double last = 0;
    for (const auto& one : from.at("buckets")) {
      const control::Load load{one.at("elements"), one.at("ready_s"), one.value("tables", 0.0)};
      if (!(load.tables >= 0) || load.tables > load.elements)
        throw std::runtime_error("more elements of tables than there are");
      if (!(load.elements > 0) || !(load.ready_s >= last))
        throw std::runtime_error("buckets that are empty, or not in the order they are ready in");
      last = load.ready_s;
      job.buckets.push_back(load);
    }
    job.rest_s = from.value("rest_s", 0.0);
    job.density = from.value("density", 1.0);
    if (from.contains("union_density") && !from["union_density"].is_null())
      job.union_density = from["union_density"];
    if (!(job.rest_s >= 0) || !(job.density >= 0 && job.density <= 1) || job.union_density > 1)
      throw std::runtime_error("rest_s or a density out of range");
  } catch (const std::exception& error) {
    return make_error(Errc::kMalformed, path + ": not a job: " + error.what());
  }
  if (job.buckets.empty()) return make_error(Errc::kMalformed, path + ": no buckets");
  return {};
}

/// How dense recorded gradients are, each and together.
Status look_at(const std::vector<NpyArray>& gradients, const PlanOptions& options,
               PlanQuestion& question) {
  const NpyArray& first = gradients.front();
  if (first.dtype != DType::kF32) {
    return make_error(Errc::kUnsupported,
                      fmt::format("{} holds {}: plan knows what float32 costs",
                                  options.gradients.front(), dtype_name(first.dtype)));
  }
  if (first.count == 0)
    return make_error(Errc::kInvalidArgument, options.gradients.front() + " is empty");
  uint64_t some = 0, all = 0;
  for (uint64_t i = 0; i < first.count; ++i) {
    uint64_t here = 0;
    for (const NpyArray& one : gradients)
      here += static_cast<const float*>(one.data())[i] != 0 ? 1 : 0;
    all += here;
    some += here > 0 ? 1 : 0;
  }
  const auto count = static_cast<double>(first.count);
  question.job.density = static_cast<double>(all) / count / static_cast<double>(gradients.size());
  if (gradients.size() == options.workers) {
    question.job.union_density = static_cast<double>(some) / count;
  } else {
    question.notes.push_back(fmt::format(
        "{} recorded gradient{} for {} workers: their union is taken to be that of independent "
        "positions",
        gradients.size(), gradients.size() == 1 ? "" : "s", options.workers));
  }
  spread(as_ddp_cuts(count), options.backward_ms * 1e-3, question.job);
  return {};
}

Status describe_job(const PlanOptions& options, const std::vector<NpyArray>& gradients,
                    PlanQuestion& question) {
  control::Job& job = question.job;
  job.cores = options.cores;
  if (!options.job.empty()) return read_job(options.job, job);
  job.rest_s = options.rest_ms * 1e-3;
  job.density = options.density;
  if (!gradients.empty()) {
    ADDEND_TRY(look_at(gradients, options, question));
  } else if (!options.buckets.empty()) {
    spread(options.buckets, options.backward_ms * 1e-3, job);
  } else if (options.elements > 0) {
    spread(as_ddp_cuts(options.elements), options.backward_ms * 1e-3, job);
  } else {
    return make_error(Errc::kInvalidArgument,
                      "what is to be summed? --elements, --buckets, --gradients or --job");
  }
  if (options.backward_ms == 0) {
    question.notes.emplace_back(
        "no --backward-ms: sums alone are compared, and nothing hides them");
  }
  return {};
}

control::Network network_of(const PlanOptions& options) {
  control::Network network;
  network.workers = options.workers;
  network.bytes_per_s = options.gbit * kBytesPerGbit;
  network.latency_s = options.latency_us * 1e-6;
  network.server_bytes_per_s =
      (options.server_gbit > 0 ? options.server_gbit : options.gbit) * kBytesPerGbit;
  network.fan_in = options.fan_in;
  return network;
}

Result<control::Calibration> calibration_of(PlanOptions& options,
                                            const std::vector<NpyArray>& gradients) {
  if (!options.calibration.empty()) return read_calibration(options.calibration);
  options.measure.workers = options.workers;
  if (!gradients.empty()) {
    const NpyArray& first = gradients.front();
    options.measure.gradient = {static_cast<const float*>(first.data()), first.count};
  }
  fmt::print(stderr, "addend: measuring codecs on this machine (--calibration FILE skips that)\n");
  auto calibration = calibrate(options.measure);
  if (calibration && !options.save.empty())
    ADDEND_TRY(write_text(options.save, to_json(*calibration)));
  return calibration;
}

Result<PlanQuestion> ask(PlanOptions& options) {
  PlanQuestion question;
  std::vector<NpyArray> gradients;
  if (!options.gradients.empty()) {
    auto read = read_gradients(options.gradients);
    if (!read) return read.error();
    gradients = *std::move(read);
  }
  ADDEND_TRY(describe_job(options, gradients, question));
  auto calibration = calibration_of(options, gradients);
  if (!calibration) return calibration.error();
  question.calibration = *std::move(calibration);
  question.network = network_of(options);
  question.floor = options.floor == "exact" ? 1 : options.floor == "fast" ? 0.7 : 0.9;
  for (const control::Engine engine : control::kEngines) {
    const auto& asked = options.engines;
    if (asked.empty() || std::find(asked.begin(), asked.end(), engine_name(engine)) != asked.end())
      question.engines.push_back(engine);
  }
  if (gradients.empty()) {
    question.notes.emplace_back(
        "fidelity is that of normally distributed values, as far as calibrated on drawn ones; "
        "--gradients shows yours");
  }
  return question;
}

/// Nothing where no file was asked for.
Status write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  ADDEND_TRY(write_text(path, text));
  fmt::print(stderr, "wrote {}\n", path);
  return {};
}

int run_plan(PlanOptions& options) {
  const auto question = ask(options);
  if (!question) return fail(question.error());
  const PlanAnswer found = answer(*question);
  const nlohmann::json document = plan_json(*question, found);
  if (options.json) {
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("{}", plan_text(*question, found));
  }
  std::fflush(stdout);
  Status written = write_file(options.out, document.dump(2));
  if (written) written = write_file(options.html, plan_page(document));
  return written ? 0 : fail(written.error());
}

void add_job_options(CLI::App& command, PlanOptions& options) {
  auto* elements =
      command.add_option("--elements", options.elements, "of a gradient, cut as DDP cuts it")
          ->transform(CLI::AsSizeValue(true).description(""))
          ->type_name("N");
  auto* buckets = command
                      .add_option("--buckets", options.buckets,
                                  "elements of each bucket, in the order they are ready in")
                      ->delimiter(',')
                      ->check(CLI::PositiveNumber)
                      ->type_name("N,N,...");
  auto* gradients = command
                        .add_option("--gradients", options.gradients,
                                    "recorded gradients, one .npy file a worker: their density, "
                                    "union and fidelity")
                        ->type_name("FILE.npy");
  auto* job = command.add_option("--job", options.job, "what addend.torch.advise recorded")
                  ->type_name("FILE");
  for (CLI::Option* one : {elements, buckets, gradients, job}) {
    for (CLI::Option* other : {elements, buckets, gradients, job}) {
      if (one != other) one->excludes(other);
    }
  }
  command.add_option("--density", options.density, "share of non-zeros in a worker's gradient")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--backward-ms", options.backward_ms,
                  "from the step's begin until the last bucket is ready")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--rest-ms", options.rest_ms, "of a step after all sums: optimizer, data")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--cores", options.cores,
                  "of a worker, for its backward pass and codecs; 0.5: two workers share one; 0: "
                  "enough")
      ->check(CLI::Range(0.0, 1024.0))
      ->capture_default_str();
}

void add_network_options(CLI::App& command, PlanOptions& options) {
  command.add_option("--workers", options.workers, "whose gradients are summed")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--gbit", options.gbit, "speed of a worker's link, each way")
      ->check(CLI::Range(1e-3, 1e5))
      ->capture_default_str();
  command.add_option("--server-gbit", options.server_gbit, "of a server's link; default: --gbit")
      ->check(CLI::Range(1e-3, 1e6));
  command.add_option("--latency-us", options.latency_us, "of a message, one way")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--fan-in", options.fan_in, "workers or servers below a server of a tree")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  command.add_option("--engine", options.engines, "look at this one only (repeatable)")
      ->check(CLI::IsMember({"ring", "mesh", "server", "tree", "switch"}));
  command
      .add_option("--floor", options.floor,
                  "fidelity that is recommended: all of it, 0.9 and more, 0.7 and more")
      ->check(CLI::IsMember({"exact", "safe", "fast"}))
      ->capture_default_str();
}

void add_calibration_options(CLI::App& command, PlanOptions& options) {
  auto* file = command.add_option("--calibration", options.calibration,
                                  "costs that --save-calibration wrote, on any machine");
  file->type_name("FILE");
  add_codec_option(command, options.measure.codecs)
      ->description("codec and options (repeatable) to measure; those worth comparing by default")
      ->excludes(file);
  command.add_option("--largest", options.measure.largest_bytes, "largest of 5 sizes to measure")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->check(CLI::Range(1.0 * (128 << 10), 1.0 * (uint64_t{4} << 30)))
      ->type_name("BYTES")
      ->excludes(file);
  command.add_option("--threads", options.measure.threads, "of a worker; 0: as in training")
      ->check(CLI::Range(0, 64))
      ->excludes(file);
  command.add_option("--save-calibration", options.save, "write what was measured")
      ->type_name("FILE")
      ->excludes(file);
}

constexpr const char* kFooter =
    "The first line says what to do, or that nothing pays: a gain below 5 % is none. Each row is "
    "a\n"
    "timeline of backward pass, encoding, network, adding and decoding: the step's time, how many\n"
    "times as fast as overlapped dense fp32 and fp16, bytes that leave one worker, what is left "
    "of\n"
    "a step's progress, the lane that limits, and up to which link speed and at how many workers "
    "it\n"
    "beats dense (docs/plan.md).\n\n"
    "Examples:\n"
    "  addend plan --elements 25M --workers 8 --gbit 10 --backward-ms 120 --html plan.html\n"
    "  addend plan --buckets 5000000,2000000 --density 0.01 --gbit 1 --engine mesh\n"
    "  addend plan --gradients step100-rank*.npy --workers 4 --gbit 1\n"
    "  addend plan --elements 100M --save-calibration here.json\n"
    "  addend plan --elements 100M --calibration here.json --workers 64 --json\n";

}  // namespace

void add_plan_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand(
      "plan", "Say whether compressing gradients pays on a network, with what, by how much");
  auto options = std::make_shared<PlanOptions>();
  add_job_options(*command, *options);
  add_network_options(*command, *options);
  add_calibration_options(*command, *options);
  command->add_flag("--json", options->json, "print one JSON document");
  command->add_option("--out", options->out, "write that document")->type_name("FILE");
  command->add_option("--html", options->html, "write a page with plots: over links, over workers")
      ->type_name("FILE");
  command->footer(kFooter);
  command->callback([options, &exit] { exit.code = run_plan(*options); });
}

}  // namespace addend::cli
