// SPDX-License-Identifier: Apache-2.0
// addend try: what each codec would do to recorded gradients, one file a worker.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "addend/file.h"
#include "apps/addend/codecs.h"
#include "apps/addend/command.h"
#include "apps/addend/gradient_files.h"
#include "apps/addend/page_buffer.h"
#include "apps/addend/table.h"
#include "apps/addend/worker.h"
#include "apps/workload/check.h"

namespace addend::cli {

namespace {

// The second step knows what the union of the first was, as every later step of a training run
// would.
constexpr int kSteps = 2;

struct TryOptions {
  std::vector<std::string> files;
  std::vector<std::string> codecs;
  NetworkHint network;
  uint64_t seed = 1;
  bool json = false;
};

/// What one codec did; sums and maxima over the workers.
struct Outcome {
  std::string codec;
  Report report;
  PhaseTimes times;          ///< of the slowest worker, second step
  workload::SumCheck check;  ///< of both steps
  uint64_t digest = 0;       ///< of one worker's answers
  bool lossy = false;
  uint64_t wrong = 0;
};

Layout layout_of(const std::vector<NpyArray>& gradients, const TryOptions& options) {
  Layout layout;
  layout.dtype = gradients.front().dtype;
  layout.count = gradients.front().count;
  layout.world = static_cast<uint32_t>(gradients.size());
  layout.seed = options.seed;
  layout.network = options.network;
  const std::vector<uint64_t>& shape = gradients.front().shape;
  if (shape.size() > 1 && layout.count > 0) layout.segments = {{1, layout.count, shape.front()}};
  return layout;
}

/// One worker's two steps; leaves what the second one did.
Result<Outcome> run_worker(Reducer& reducer, const CodecSpec& spec, const Layout& layout,
                           std::span<const void* const> inputs) {
  Layout mine = layout;
  mine.worker = reducer.worker();
  auto codec = create_codec(spec, mine);
  if (!codec) return codec.error();
  const uint64_t bytes = layout.count * dtype_bytes(layout.dtype);
  auto work = PageBuffer::create(bytes);
  if (!work) return work.error();
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    if (bytes > 0) std::memcpy(work->data(), inputs[reducer.worker()], bytes);
    auto times = all_reduce_by_hand(**codec, reducer, work->data());
    if (!times) return times.error();
    outcome.times = *times;
    const workload::SumCheck check =
        workload::check_sum(layout.dtype, inputs, work->data(), layout.count);
    outcome.check.merge(check);
    outcome.digest =
        outcome.digest * 31 + workload::digest(layout.dtype, work->data(), layout.count);
  }
  outcome.report = (*codec)->report();
  return outcome;
}

Result<Outcome> run_codec(const CodecSpec& spec, const Layout& layout,
                          std::span<const void* const> inputs) {
  std::vector<Outcome> outcomes(layout.world);
  ADDEND_TRY(run_workers(layout.world, [&](Reducer& reducer) -> Status {
    auto outcome = run_worker(reducer, spec, layout, inputs);
    if (!outcome) return outcome.error();
    outcomes[reducer.worker()] = *std::move(outcome);
    return {};
  }));
  Outcome total = outcomes.front();
  const workload::Tolerance allowed = tolerance(spec, layout.world);
  total.codec = spec.to_string();
  total.lossy = allowed.lossy;
  for (const Outcome& outcome : outcomes) {
    const bool alike = outcome.digest == total.digest;
    total.wrong += allowed.lossy && !alike ? layout.count : outcome.check.wrong_within(allowed);
  }
  for (std::size_t i = 1; i < outcomes.size(); ++i) {
    const PhaseTimes& times = outcomes[i].times;
    total.times.encode_us = std::max(total.times.encode_us, times.encode_us);
    total.times.reduce_us = std::max(total.times.reduce_us, times.reduce_us);
    total.times.decode_us = std::max(total.times.decode_us, times.decode_us);
    total.check.merge(outcomes[i].check);
  }
  return total;
}

double ratio(const Report& report) {
  if (report.wire_bytes == 0) return 1;
  return static_cast<double>(report.dense_bytes) / static_cast<double>(report.wire_bytes);
}

std::vector<uint64_t> round_bytes(const Report& report) {
  return {report.round_bytes.begin(), report.round_bytes.begin() + report.rounds};
}

std::string answer(const Outcome& outcome) {
  if (outcome.wrong > 0) return fmt::format("{} WRONG", outcome.wrong);
  if (outcome.lossy) return "lossy";
  return outcome.check.rounded_once() ? "exact" : "as dense";
}

Row outcome_row(const Outcome& outcome) {
  const Report& report = outcome.report;
  std::vector<std::string> rounds;
  for (uint64_t bytes : round_bytes(report))
    rounds.push_back(std::to_string(bytes));
  return {outcome.codec,
          std::string(report.mode),
          std::string(report.fallback),
          join(rounds, " + "),
          std::to_string(report.wire_bytes),
          fmt::format("{}x", format_number(ratio(report))),
          answer(outcome),
          format_error(outcome.check.max_abs_error),
          format_error(outcome.check.nmse()),
          format_us(outcome.times.encode_us),
          format_us(outcome.times.reduce_us),
          format_us(outcome.times.decode_us)};
}

nlohmann::json outcome_json(const Outcome& outcome) {
  const Report& report = outcome.report;
  return {
      {"codec", outcome.codec},
      {"mode", report.mode},
      {"fallback", report.fallback},
      {"round_bytes", round_bytes(report)},
      {"wire_bytes", report.wire_bytes},
      {"dense_bytes", report.dense_bytes},
      {"ratio", ratio(report)},
      {"stuck_keys", report.stuck_keys},
      {"escaped_values", report.escaped_values},
      {"wrong", outcome.wrong},
      {"answer", answer(outcome)},
      {"max_abs_error", outcome.check.max_abs_error},
      {"relative_l2_error", outcome.check.relative_l2()},
      {"nmse", outcome.check.nmse()},
      {"encode_us", outcome.times.encode_us},
      {"reduce_us", outcome.times.reduce_us},
      {"decode_us", outcome.times.decode_us},
  };
}

double union_density(const Outcome& outcome) {
  if (outcome.check.elements == 0) return 0;
  return static_cast<double>(outcome.check.union_nonzeros) /
         static_cast<double>(outcome.check.elements);
}

void print_table(const TryOptions& options, const std::vector<NpyArray>& gradients,
                 const std::vector<Outcome>& outcomes) {
  fmt::print("# {} workers, {} {} elements each, union density {:.3f}%, seed {}\n",
             gradients.size(), gradients.front().count, dtype_name(gradients.front().dtype),
             union_density(outcomes.front()) * 100, options.seed);
  std::vector<Row> rows;
  rows.reserve(outcomes.size());
  for (const Outcome& outcome : outcomes)
    rows.push_back(outcome_row(outcome));
  fmt::print("{}", format_table({{"codec", Align::kLeft},
                                 {"mode", Align::kLeft},
                                 {"fallback", Align::kLeft},
                                 {"bytes by round", Align::kLeft},
                                 {"wire"},
                                 {"ratio"},
                                 {"answer", Align::kLeft},
                                 {"max error"},
                                 {"nmse"},
                                 {"encode"},
                                 {"reduce"},
                                 {"decode"}},
                                rows));
  fmt::print(
      "\nexact: the true sum, rounded once. as dense: within what adding floats one by one may "
      "round.\n"
      "lossy: within the codec's error, the same on all workers. nmse: squared error of the mean / "
      "mean\nsquared norm of the gradients. Answers and errors are those of both steps, the rest "
      "of "
      "the second.\n"
      "encode, decode: CPU time of the slowest worker; reduce: wall time among threads of this "
      "machine.\n");
}

int run_try(TryOptions& options) {
  auto gradients = read_gradients(options.files);
  if (!gradients) return fail(gradients.error());
  const Layout layout = layout_of(*gradients, options);
  if (options.codecs.empty()) options.codecs = sensible_codecs(!layout.segments.empty());
  auto specs = parse_codecs(options.codecs, layout);
  if (!specs) return fail(specs.error());
  std::vector<const void*> inputs;
  for (const NpyArray& gradient : *gradients)
    inputs.push_back(gradient.data());

  std::vector<Outcome> outcomes;
  nlohmann::json rows = nlohmann::json::array();
  uint64_t wrong = 0;
  for (const CodecSpec& spec : *specs) {
    auto outcome = run_codec(spec, layout, inputs);
    if (!outcome) return fail(outcome.error());
    wrong += outcome->wrong;
    rows.push_back(outcome_json(*outcome));
    outcomes.push_back(*std::move(outcome));
  }
  if (options.json) {
    const nlohmann::json document{{"files", options.files},
                                  {"workers", layout.world},
                                  {"count", layout.count},
                                  {"dtype", dtype_name(layout.dtype)},
                                  {"union_density", union_density(outcomes.front())},
                                  {"seed", options.seed},
                                  {"results", std::move(rows)}};
    fmt::print("{}\n", document.dump(2));
  } else {
    print_table(options, *gradients, outcomes);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace

void add_try_command(CLI::App& app, Exit& exit) {
  CLI::App* command =
      app.add_subcommand("try", "Say what each codec would do to recorded gradients (.npy)");
  auto options = std::make_shared<TryOptions>();
  command->add_option("files", options->files, "one .npy file a worker, of one shape and type")
      ->required()
      ->type_name("FILE.npy");
  add_codec_option(*command, options->codecs)
      ->description("codec and options (repeatable); all sensible ones by default");
  command->add_option("--latency-us", options->network.latency_us, "planner's hint: of one round")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--gbit", options->network.gbit_per_s, "planner's hint: link speed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the codecs")->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON document");
  command->footer(
      "An array of several dimensions is a matrix of its first by the others (lowrank). Each codec "
      "runs\n"
      "two steps, of which the second knows the union of the first. Bytes and "
      "times are\n"
      "the second's; answers and errors are checked in both. Exit code 1 if any element is "
      "wrong.\n\n"
      "Examples:\n"
      "  addend try rank0.npy rank1.npy rank2.npy rank3.npy\n"
      "  addend try rank*.npy --codec exact --codec exact:mode=sketch,values=reproducible\n"
      "  addend try rank*.npy --codec quant --codec quant:bits=auto,budget=3\n"
      "  addend try rank*.npy --gbit 1 --json\n");
  command->callback([options, &exit] { exit.code = run_try(*options); });
}

}  // namespace addend::cli
