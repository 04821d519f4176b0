// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/plan_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "apps/addend/table.h"

namespace addend::cli {

namespace {

using control::Advice;
using control::Engine;
using control::Network;
using control::Prediction;

constexpr double kBytesPerGbit = 1.25e8;
constexpr double kGbits[] = {0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 100, 200, 400};
constexpr uint32_t kWorkers[] = {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

Network on(const PlanQuestion& question, Engine engine) {
  Network network = question.network;
  network.engine = engine;
  return network;
}

double step_s(const PlanQuestion& question, std::size_t codec, const Network& network,
              control::Homomorphism form = control::Homomorphism::kAdds) {
  const auto& model = question.calibration.codecs[codec];
  return predict(question.job, question.calibration, model, network, form).step_s;
}

/// Dense's step time by the codec's, with the link so fast and so many workers.
double speedup(const PlanQuestion& question, std::size_t codec, const Network& network,
               control::Homomorphism form = control::Homomorphism::kAdds) {
  return step_s(question, 0, network) / step_s(question, codec, network, form);
}

/// A step in which nothing overlaps: what the speedup model of homomorphic compression adds up.
double sum_s(const PlanQuestion& question, std::size_t codec, const Network& network,
             control::Homomorphism form) {
  const auto& model = question.calibration.codecs[codec];
  const auto lanes = predict(question.job, question.calibration, model, network, form).busy_s;
  return std::accumulate(lanes.begin(), lanes.end(), question.job.rest_s);
}

std::size_t find_f16(const PlanQuestion& question) {
  const auto& codecs = question.calibration.codecs;
  const auto found = std::find_if(codecs.begin(), codecs.end(),
                                  [](const auto& one) { return one.spec == "cast:to=f16"; });
  return found == codecs.end() ? 0 : static_cast<std::size_t>(found - codecs.begin());
}

/// "10 Gbit/s", "any", "-".
std::string break_even_text(double bytes_per_s) {
  if (bytes_per_s == 0) return "-";
  return std::isinf(bytes_per_s) ? "any" : format_number(bytes_per_s / kBytesPerGbit);
}

std::string workers_text(const control::WorkerRange& range) {
  if (range.first == 0) return "-";
  return range.first == range.last ? fmt::format("{}", range.first)
                                   : fmt::format("{} to {}", range.first, range.last);
}

std::string times(double factor) { return factor > 0 ? fmt::format("{:.2f}x", factor) : "-"; }

Row row_text(const PlanQuestion& question, const PlanRow& row) {
  const auto& model = question.calibration.codecs[row.codec];
  const bool dense = row.codec == 0;
  return {fmt::format("{}{}", engine_name(row.engine), is_closed_form(row.engine) ? "*" : ""),
          model.spec,
          format_us(row.predicted.step_s * 1e6),
          times(row.over_f32),
          times(row.over_f16),
          format_bytes(row.predicted.link_bytes),
          fmt::format("{:.4g}", model.fidelity),
          lane_name(row.predicted.limit),
          dense ? "" : break_even_text(row.break_even_bytes_per_s),
          dense ? "" : workers_text(row.workers)};
}

std::string job_text(const PlanQuestion& question) {
  const Network& network = question.network;
  double elements = 0;
  for (const control::Load& load : question.job.buckets)
    elements += load.elements;
  return fmt::format(
      "{} workers, links of {} Gbit/s and {} us; {:.4g} million elements in {} bucket{}, {:.3g} % "
      "of them non-zero on a worker, backward pass {}",
      network.workers, format_number(network.bytes_per_s / kBytesPerGbit),
      format_number(network.latency_s * 1e6), elements * 1e-6, question.job.buckets.size(),
      question.job.buckets.size() == 1 ? "" : "s", question.job.density * 100,
      format_us(question.job.buckets.back().ready_s * 1e6));
}

nlohmann::json finite(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json row_json(const PlanQuestion& question, const PlanRow& row) {
  const auto& model = question.calibration.codecs[row.codec];
  nlohmann::json busy;
  for (std::size_t lane = 0; lane < control::kLanes; ++lane)
    busy[lane_name(static_cast<control::Lane>(lane))] = row.predicted.busy_s[lane];
  return {{"engine", engine_name(row.engine)},
          {"closed_form", is_closed_form(row.engine)},
          {"codec", model.spec},
          {"step_s", row.predicted.step_s},
          {"over_f32", row.over_f32},
          {"over_f16", row.over_f16 > 0 ? nlohmann::json(row.over_f16) : nullptr},
          {"link_bytes", row.predicted.link_bytes},
          {"union_density", row.predicted.union_density},
          {"fidelity", model.fidelity},
          {"limit", lane_name(row.predicted.limit)},
          {"busy_s", std::move(busy)},
          {"pays_on_any_link", std::isinf(row.break_even_bytes_per_s)},
          {"break_even_gbit", finite(row.break_even_bytes_per_s / kBytesPerGbit)},
          {"workers", {row.workers.first, row.workers.last}}};
}

/// Speedup of every codec over link speeds, and over workers, on one engine.
nlohmann::json curves(const PlanQuestion& question, Engine engine) {
  nlohmann::json out = nlohmann::json::array();
  const double ratio = question.network.server_bytes_per_s / question.network.bytes_per_s;
  for (std::size_t codec = 0; codec < question.calibration.codecs.size(); ++codec) {
    nlohmann::json over_gbit = nlohmann::json::array(), over_workers = nlohmann::json::array();
    Network network = on(question, engine);
    for (const double gbit : kGbits) {
      network.bytes_per_s = gbit * kBytesPerGbit;
      network.server_bytes_per_s = network.bytes_per_s * ratio;
      over_gbit.push_back(speedup(question, codec, network));
    }
    network = on(question, engine);
    for (const uint32_t workers : kWorkers) {
      network.workers = workers;
      over_workers.push_back(speedup(question, codec, network));
    }
    out.push_back({{"codec", question.calibration.codecs[codec].spec},
                   {"over_gbit", std::move(over_gbit)},
                   {"over_workers", std::move(over_workers)}});
  }
  return out;
}

/// The model of homomorphic compression: what the codec's form allows, over workers. A server's
/// link, because that is where it makes a difference.
nlohmann::json forms(const PlanQuestion& question, std::size_t codec) {
  nlohmann::json out = nlohmann::json::array();
  constexpr std::pair<const char*, control::Homomorphism> kForms[] = {
      {"H0", control::Homomorphism::kNone},
      {"H1", control::Homomorphism::kAdds},
      {"H2", control::Homomorphism::kOptimizes}};
  for (const auto& [name, form] : kForms) {
    nlohmann::json over_workers = nlohmann::json::array(), model = nlohmann::json::array();
    Network network = on(question, Engine::kServer);
    for (const uint32_t workers : kWorkers) {
      network.workers = workers;
      over_workers.push_back(speedup(question, codec, network, form));
      model.push_back(sum_s(question, 0, network, control::Homomorphism::kAdds) /
                      sum_s(question, codec, network, form));
    }
    out.push_back({{"form", name},
                   {"over_workers", std::move(over_workers)},
                   {"model_over_workers", std::move(model)}});
  }
  return out;
}

/// The codec that a page shows by example where nothing pays: the one that comes nearest.
std::size_t shown(const PlanAnswer& answer) {
  if (answer.advice.codec != 0) return answer.advice.codec;
  const PlanRow* best = nullptr;
  for (const PlanRow& row : answer.rows) {
    if (row.codec != 0 && (best == nullptr || row.over_f32 > best->over_f32)) best = &row;
  }
  return best == nullptr ? 0 : best->codec;
}

}  // namespace

PlanAnswer answer(const PlanQuestion& question) {
  PlanAnswer out;
  std::vector<Engine> measured;
  for (const Engine engine : question.engines) {
    if (!is_closed_form(engine)) measured.push_back(engine);
  }
  if (measured.empty()) measured = question.engines;
  out.advice =
      advise(question.job, question.calibration, question.network, measured, question.floor);
  const std::size_t f16 = find_f16(question);
  for (const Engine engine : question.engines) {
    const Network network = on(question, engine);
    for (std::size_t codec = 0; codec < question.calibration.codecs.size(); ++codec) {
      const auto& model = question.calibration.codecs[codec];
      PlanRow row;
      row.engine = engine;
      row.codec = codec;
      row.predicted = predict(question.job, question.calibration, model, network);
      row.over_f32 = step_s(question, 0, network) / row.predicted.step_s;
      if (f16 != 0) row.over_f16 = step_s(question, f16, network) / row.predicted.step_s;
      if (codec != 0) {
        row.break_even_bytes_per_s =
            break_even_bytes_per_s(question.job, question.calibration, model, network);
        row.workers = break_even_workers(question.job, question.calibration, model, network);
      }
      out.rows.push_back(row);
    }
  }
  return out;
}

std::string verdict(const PlanQuestion& question, const Advice& advice) {
  const std::string what = fmt::format(
      "{} over {}{}", question.calibration.codecs[advice.codec].spec, engine_name(advice.engine),
      is_closed_form(advice.engine) ? ", by a closed form alone" : "");
  if (advice.pays) {
    return fmt::format(
        "use {}: {:.2f} times the progress of dense ({:.2f} to {:.2f} times if links are 20 % off)",
        what, advice.gain, advice.least_gain, advice.most_gain);
  }
  if (advice.codec == 0) return "nothing pays: dense makes most progress";
  return fmt::format("nothing pays: {} would gain {:.1f} %, and below 5 % this model cannot tell",
                     what, (advice.gain - 1) * 100);
}

std::string plan_text(const PlanQuestion& question, const PlanAnswer& answer) {
  std::string text = verdict(question, answer.advice) + "\n" + job_text(question) + "\n";
  for (const std::string& note : question.notes)
    text += note + "\n";
  std::vector<Row> rows;
  bool closed = false;
  for (const PlanRow& row : answer.rows) {
    rows.push_back(row_text(question, row));
    closed = closed || is_closed_form(row.engine);
  }
  text += "\n" + format_table({{"engine", Align::kLeft},
                               {"codec", Align::kLeft},
                               {"step"},
                               {"x fp32"},
                               {"x fp16"},
                               {"link/step"},
                               {"fidelity"},
                               {"limit", Align::kLeft},
                               {"pays below Gbit/s"},
                               {"pays at workers"}},
                              rows);
  if (closed)
    text +=
        "\n* from a closed form alone, never measured: recommended only if nothing else is asked "
        "about\n";
  return text;
}

nlohmann::json plan_json(const PlanQuestion& question, const PlanAnswer& answer) {
  const Advice& advice = answer.advice;
  const Network& network = question.network;
  nlohmann::json rows = nlohmann::json::array(), buckets = nlohmann::json::array();
  for (const PlanRow& row : answer.rows)
    rows.push_back(row_json(question, row));
  for (const control::Load& load : question.job.buckets)
    buckets.push_back(
        {{"elements", load.elements}, {"ready_s", load.ready_s}, {"tables", load.tables}});
  const Engine drawn = advice.engine;
  return {{"kind", "addend plan"},
          {"verdict", verdict(question, advice)},
          {"pays", advice.pays},
          {"codec", question.calibration.codecs[advice.codec].spec},
          {"engine", engine_name(advice.engine)},
          {"gain", advice.gain},
          {"band", {advice.least_gain, advice.most_gain}},
          {"about", job_text(question)},
          {"notes", question.notes},
          {"network",
           {{"workers", network.workers},
            {"gbit", network.bytes_per_s / kBytesPerGbit},
            {"server_gbit", network.server_bytes_per_s / kBytesPerGbit},
            {"latency_us", network.latency_s * 1e6}}},
          {"job",
           {{"buckets", std::move(buckets)},
            {"rest_s", question.job.rest_s},
            {"density", question.job.density},
            {"union_density", finite(question.job.union_density)},
            {"cores", question.job.cores}}},
          {"rows", std::move(rows)},
          {"curves",
           {{"engine", engine_name(drawn)},
            {"gbit", kGbits},
            {"workers", kWorkers},
            {"codecs", curves(question, drawn)},
            {"form_codec", question.calibration.codecs[shown(answer)].spec},
            {"forms", forms(question, shown(answer))}}}};
}

}  // namespace addend::cli
