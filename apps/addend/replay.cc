// SPDX-License-Identifier: Apache-2.0
// addend replay: the decisions of an adaptive run once more, from what it saw.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "addend/control.h"
#include "apps/addend/command.h"
#include "apps/addend/table.h"
#include "apps/addend/trace_file.h"

namespace addend::cli {

namespace {

using control::Decision;
using control::Trace;

struct ReplayOptions {
  std::string path;
  bool json = false;
};

// Numbers that are not known are equal.
bool same(double a, double b) { return a == b || (a != a && b != b); }

bool same(const Decision& a, const Decision& b) {
  return a.window == b.window && a.plan == b.plan && a.why == b.why && a.steps == b.steps &&
         a.reference_steps == b.reference_steps && a.probe == b.probe &&
         same(a.realised_s, b.realised_s) && same(a.foreseen_s, b.foreseen_s) &&
         same(a.predicted_s, b.predicted_s) && same(a.predicted_dense_s, b.predicted_dense_s) &&
         same(a.phi, b.phi) && same(a.latency_s, b.latency_s) && same(a.bytes_per_s, b.bytes_per_s);
}

// "exact x3, dense": what buckets have, in their order.
template <typename NameOf>
std::string in_runs(std::size_t count, const NameOf& name_of) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
    const std::string name = name_of(begin);
    while (end < count && name_of(end) == name)
      ++end;
    parts.push_back(end - begin > 1 ? fmt::format("{} x{}", name, end - begin) : name);
  }
  return join(parts, ", ");
}

std::string plan_of(const Trace& trace, const Decision& decision) {
  return in_runs(decision.plan.size(), [&](std::size_t b) {
    const uint32_t c = decision.plan[b];
    return c < trace.setup.candidates.size() ? trace.setup.candidates[c].spec
                                             : fmt::format("candidate {}", c);
  });
}

std::string why_of(const Decision& decision) {
  return in_runs(decision.why.size(),
                 [&](std::size_t b) { return std::string(control::reason_name(decision.why[b])); });
}

std::string milliseconds(double seconds) {
  return seconds > 0 ? format_us(seconds * 1e6) : std::string("-");
}

void print_table(const Trace& trace, const std::vector<Decision>& decisions) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const Decision& one = decisions[i];
    rows.push_back(
        {fmt::format("{}", one.window), milliseconds(one.realised_s), milliseconds(one.foreseen_s),
         milliseconds(one.predicted_s), milliseconds(one.predicted_dense_s), format_number(one.phi),
         format_number(one.bytes_per_s / 1.25e8), fmt::format("{}", one.steps), plan_of(trace, one),
         why_of(one), same(one, trace.windows[i].decision) ? "" : "DIFFERS"});
  }
  fmt::print("{}", format_table({{"window"},
                                 {"step"},
                                 {"foreseen"},
                                 {"next"},
                                 {"dense"},
                                 {"phi"},
                                 {"Gbit/s"},
                                 {"steps"},
                                 {"plan", Align::kLeft},
                                 {"why", Align::kLeft},
                                 {"", Align::kLeft}},
                                rows));
}

nlohmann::json to_json(const Trace& trace, const Decision& one, bool equal) {
  nlohmann::json plan = nlohmann::json::array(), why = nlohmann::json::array();
  for (std::size_t b = 0; b < one.plan.size(); ++b) {
    plan.push_back(trace.setup.candidates[one.plan[b]].spec);
    why.push_back(control::reason_name(one.why[b]));
  }
  return {{"window", one.window},
          {"plan", plan},
          {"why", why},
          {"steps", one.steps},
          {"reference_steps", one.reference_steps},
          {"realised_s", one.realised_s},
          {"foreseen_s", one.foreseen_s},
          {"predicted_s", one.predicted_s},
          {"predicted_dense_s", one.predicted_dense_s},
          {"phi", one.phi},
          {"gbit_per_s", one.bytes_per_s / 1.25e8},
          {"same", equal}};
}

Result<int> run_replay(const ReplayOptions& options) {
  const auto trace = read_trace(options.path);
  ADDEND_TRY(trace);
  const auto decisions = control::replay(*trace);
  if (!decisions) {
    return make_error(decisions.error().code, options.path + ": " + decisions.error().message);
  }
  std::size_t different = 0;
  nlohmann::json all = nlohmann::json::array();
  for (std::size_t i = 0; i < decisions->size(); ++i) {
    const bool equal = same((*decisions)[i], trace->windows[i].decision);
    different += equal ? 0 : 1;
    all.push_back(to_json(*trace, (*decisions)[i], equal));
  }
  if (options.json) {
    fmt::print("{}\n", nlohmann::json{{"windows", all}, {"different", different}}.dump(2));
  } else {
    print_table(*trace, *decisions);
    fmt::print("{} windows, {}\n", decisions->size(),
               different == 0 ? std::string("all decisions as recorded")
                              : fmt::format("{} decisions differ from those recorded", different));
  }
  return different == 0 ? 0 : 1;
}

}  // namespace

void add_replay_command(CLI::App& app, Exit& exit) {
  CLI::App* command =
      app.add_subcommand("replay", "Make the decisions of an adaptive run again from its trace");
  auto options = std::make_shared<ReplayOptions>();
  command->add_option("trace", options->path, "trace that save_decisions wrote")
      ->required()
      ->type_name("FILE");
  command->add_flag("--json", options->json, "print JSON");
  command->footer(
      "A controller sees signals that all ranks have reduced, and has no clock: the same signals\n"
      "give the same plans. Exits with 1 if a decision differs from the one that was recorded.\n\n"
      "Columns: a step of the window just over as it was and as it had been foreseen; a step of\n"
      "the next window as predicted, and if everything went dense; fidelity; the link; steps of\n"
      "the next window; what buckets get, and why (docs/adaptive.md).\n\n"
      "Examples:\n"
      "  addend replay trace.json\n"
      "  addend replay trace.json --json\n");
  command->callback([options, &exit] {
    const auto code = run_replay(*options);
    exit.code = code ? *code : fail(code.error());
  });
}

}  // namespace addend::cli
