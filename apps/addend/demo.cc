// SPDX-License-Identifier: Apache-2.0
// addend demo: several workers all-reduce the gradients of three kinds of model through every
// codec.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/addend/codecs.h"
#include "apps/addend/command.h"
#include "apps/addend/demo_report.h"
#include "apps/addend/demo_run.h"
#include "apps/addend/machine.h"
#include "apps/addend/output.h"
#include "apps/addend/progress.h"
#include "apps/workload/model.h"

namespace addend::cli {

namespace {

struct DemoCommand {
  DemoSettings settings;
  std::string dtype = "f32";
  double scale = 1.0;
  std::vector<std::string> models = workload::model_names();
  std::vector<std::string> codecs;
  std::string out;
  bool json = false;
};

Result<ModelOutcome> run_model(const workload::Model& model, const std::vector<CodecSpec>& specs,
                               const DemoCommand& command, Progress& progress) {
  auto run = ModelRun::create(model, command.settings);
  if (!run) return run.error();
  ModelOutcome outcome{&model, {}};
  for (const CodecSpec& spec : specs) {
    progress.stage(fmt::format("{} through {}", model.name, spec.to_string()));
    auto codec = run->run(spec, [&](uint32_t step) {
      progress.detail(fmt::format("step {} of {}", step + 1, command.settings.steps));
    });
    if (!codec) return codec.error();
    outcome.codecs.push_back(*std::move(codec));
  }
  return outcome;
}

nlohmann::json document(const DemoCommand& command, nlohmann::json models) {
  return {
      {"kind", "addend demo"},
      {"machine", to_json(describe_machine())},
      {"workers", command.settings.workers},
      {"steps", command.settings.steps},
      {"dtype", command.dtype},
      {"scale", command.scale},
      {"seed", command.settings.seed},
      {"hint",
       {{"latency_us", command.settings.network.latency_us},
        {"gbit_per_s", command.settings.network.gbit_per_s}}},
      {"models", std::move(models)},
  };
}

/// Names are checked before any work is done.
Result<std::vector<workload::Model>> make_models(const DemoCommand& command) {
  std::vector<workload::Model> models;
  for (const std::string& name : command.models) {
    auto model = workload::make_model(name, {command.scale, command.settings.seed});
    if (!model) return model.error();
    models.push_back(*std::move(model));
  }
  return models;
}

Result<std::vector<CodecSpec>> make_specs(const DemoCommand& command) {
  Layout layout;
  layout.dtype = command.settings.dtype;
  layout.count = 1;
  layout.world = command.settings.workers;
  return parse_codecs(command.codecs.empty() ? sensible_codecs() : command.codecs, layout);
}

int finish(const DemoCommand& command, const nlohmann::json& models, uint64_t wrong) {
  const std::string text = document(command, models).dump(2);
  if (command.json) {
    fmt::print("{}\n", text);
  } else {
    fmt::print("{}", legend());
  }
  std::fflush(stdout);
  if (!command.out.empty()) {
    Status written = write_text(command.out, text);
    if (!written) return fail(written.error());
    fmt::print(stderr, "wrote {}\n", command.out);
  }
  if (wrong == 0) return 0;
  fmt::print(stderr, "addend: error: {} elements are wrong\n", wrong);
  return 1;
}

int run_demo(DemoCommand& command) {
  command.settings.dtype = parse_dtype(command.dtype);
  auto models = make_models(command);
  if (!models) return fail(models.error());
  auto specs = make_specs(command);
  if (!specs) return fail(specs.error());
  if (!command.json) {
    fmt::print("# {}\n# {} workers (threads), {} steps, {}, seed {}\n\n",
               summarize(describe_machine()), command.settings.workers, command.settings.steps,
               command.dtype, command.settings.seed);
    std::fflush(stdout);
  }
  nlohmann::json rows = nlohmann::json::array();
  uint64_t wrong = 0;
  std::size_t stages = models->size() * specs->size();
  {
    Progress progress(stages);
    for (const workload::Model& model : *models) {
      auto outcome = run_model(model, *specs, command, progress);
      if (!outcome) return fail(outcome.error());
      for (const DemoOutcome& codec : outcome->codecs)
        wrong += codec.wrong;
      rows.push_back(model_json(*outcome));
      if (command.json) continue;
      progress.clear();
      fmt::print("{}\n", model_text(*outcome));
      std::fflush(stdout);
    }
  }
  return finish(command, rows, wrong);
}

void add_options(CLI::App& command, DemoCommand& demo) {
  command.add_option("--workers", demo.settings.workers, "threads, each with its own gradients")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--steps", demo.settings.steps, "fresh gradients in each; the first warms up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--models", demo.models, "which, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  add_codec_option(command, demo.codecs)
      ->description("codec and options (repeatable); all sensible ones by default");
  add_dtype_option(command, demo.dtype);
  command.add_option("--scale", demo.scale, "size of the models; 1 is 7 to 21 million parameters")
      ->check(CLI::Range(0.001, 16.0))
      ->capture_default_str();
  command
      .add_option("--latency-us", demo.settings.network.latency_us, "planner's hint: of one round")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--gbit", demo.settings.network.gbit_per_s, "planner's hint: link speed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--seed", demo.settings.seed, "of gradients and codecs")
      ->capture_default_str();
  command.add_option("-o,--out", demo.out, "also write the results as JSON, for tools/report.py")
      ->type_name("FILE");
  command.add_flag("--json", demo.json, "print the JSON instead of tables");
}

}  // namespace

void add_demo_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand(
      "demo", "All-reduce realistic gradients through every codec and check every answer");
  auto demo = std::make_shared<DemoCommand>();
  add_options(*command, *demo);
  command->footer(
      "Models: recommender (embedding tables, power-law rows), language (sampled softmax, LSTM),\n"
      "vision (all dense). Exit code 1 if any element of any step is wrong.\n\n"
      "Examples:\n"
      "  addend demo --out report.json && tools/report.py report.json -o report.html\n"
      "  addend demo --models recommender --workers 8 --codec dense --codec exact\n"
      "  addend demo --scale 0.1 --steps 10 --dtype bf16 --json\n");
  command->callback([demo, &exit] { exit.code = run_demo(*demo); });
}

}  // namespace addend::cli
