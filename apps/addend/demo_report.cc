// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/demo_report.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "apps/addend/table.h"

namespace addend::cli {

namespace {

const DemoOutcome* find_dense(const ModelOutcome& outcome) {
  for (const DemoOutcome& codec : outcome.codecs) {
    if (codec.codec == "dense") return &codec;
  }
  return nullptr;
}

double ratio(const DemoOutcome& outcome) {
  return static_cast<double>(outcome.dense_bytes()) /
         static_cast<double>(std::max<uint64_t>(outcome.wire_bytes(), 1));
}

bool same_as_dense(const DemoOutcome& outcome, const DemoOutcome* dense) {
  return dense != nullptr && outcome.digests == dense->digests;
}

std::string answer(const DemoOutcome& outcome, const DemoOutcome* dense) {
  if (outcome.wrong > 0) return fmt::format("{} WRONG", outcome.wrong);
  if (outcome.lossy) return "nmse " + format_error(outcome.check.nmse());
  if (outcome.check.rounded_once()) return "exact";
  return same_as_dense(outcome, dense) ? "= dense" : "as dense";
}

/// "two-level x4, dense x1" in the order in which buckets show them.
std::string modes(const DemoOutcome& outcome) {
  std::vector<std::pair<std::string, int>> counts;
  for (const BucketOutcome& bucket : outcome.buckets) {
    const std::string mode = bucket.fallback == "none"
                                 ? bucket.mode
                                 : fmt::format("{}>{}", bucket.mode, bucket.fallback);
    const auto found = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& entry) { return entry.first == mode; });
    if (found != counts.end()) {
      ++found->second;
    } else {
      counts.emplace_back(mode, 1);
    }
  }
  if (counts.size() == 1) return counts.front().first;
  std::vector<std::string> words;
  words.reserve(counts.size());
  for (const auto& [mode, count] : counts)
    words.push_back(fmt::format("{} x{}", mode, count));
  return join(words, ", ");
}

Row codec_row(const DemoOutcome& outcome, const DemoOutcome* dense) {
  Row row{outcome.codec,
          modes(outcome),
          format_bytes(static_cast<double>(outcome.wire_bytes())),
          fmt::format("{}x", format_number(ratio(outcome))),
          format_us(outcome.time_us()),
          dense == nullptr ? "-" : fmt::format("{:.2f}x", dense->time_us() / outcome.time_us()),
          answer(outcome, dense)};
  for (double link : kLinks)
    row.push_back(format_us(estimate_us(outcome, link)));
  return row;
}

nlohmann::json bucket_json(const BucketOutcome& bucket) {
  return {
      {"name", bucket.name},
      {"count", bucket.count},
      {"union_density", bucket.union_density},
      {"mode", bucket.mode},
      {"fallback", bucket.fallback},
      {"rounds", bucket.rounds},
      {"wire_bytes", bucket.wire_bytes},
      {"dense_bytes", bucket.dense_bytes},
  };
}

nlohmann::json codec_json(const DemoOutcome& outcome, const DemoOutcome* dense) {
  nlohmann::json buckets = nlohmann::json::array();
  for (const BucketOutcome& bucket : outcome.buckets)
    buckets.push_back(bucket_json(bucket));
  nlohmann::json estimates = nlohmann::json::array();
  for (double link : kLinks) {
    estimates.push_back({{"gbit_per_s", link}, {"step_us", estimate_us(outcome, link)}});
  }
  return {
      {"codec", outcome.codec},
      {"modes", modes(outcome)},
      {"wire_bytes", outcome.wire_bytes()},
      {"step_wire_bytes", outcome.step_wire_bytes},
      {"ratio", ratio(outcome)},
      {"time_us", outcome.time_us()},
      {"step_us", outcome.step_us},
      {"times_dense", dense == nullptr ? 0.0 : dense->time_us() / outcome.time_us()},
      {"encode_us", outcome.phases.encode_us},
      {"reduce_us", outcome.phases.reduce_us},
      {"decode_us", outcome.phases.decode_us},
      {"codec_us", outcome.codec_us()},
      {"answer", answer(outcome, dense)},
      {"lossy", outcome.lossy},
      {"wrong", outcome.wrong},
      {"max_abs_error", outcome.check.max_abs_error},
      {"relative_l2_error", outcome.check.relative_l2()},
      {"nmse", outcome.check.nmse()},
      {"bit_identical_to_dense", same_as_dense(outcome, dense)},
      {"replicas_identical", outcome.replicas_identical},
      {"estimates", std::move(estimates)},
      {"buckets", std::move(buckets)},
  };
}

}  // namespace

double estimate_us(const DemoOutcome& outcome, double gbit_per_s) {
  return outcome.codec_us() + static_cast<double>(outcome.wire_bytes()) * 8 / gbit_per_s * 1e-3;
}

std::string model_text(const ModelOutcome& outcome) {
  const DemoOutcome* dense = find_dense(outcome);
  std::vector<Column> columns{{"codec", Align::kLeft},
                              {"ran", Align::kLeft},
                              {"on the wire"},
                              {"ratio"},
                              {"step"},
                              {"x dense"},
                              {"answer", Align::kLeft}};
  for (double link : kLinks)
    columns.push_back({fmt::format("est. {:g}G", link)});
  std::vector<Row> rows;
  for (const DemoOutcome& codec : outcome.codecs)
    rows.push_back(codec_row(codec, dense));
  return fmt::format("{}: {}\n{:.1f} million parameters in {} buckets, {} dense\n\n{}",
                     outcome.model->name, outcome.model->description,
                     static_cast<double>(outcome.model->count()) * 1e-6,
                     outcome.model->buckets.size(),
                     format_bytes(static_cast<double>(outcome.codecs.front().dense_bytes())),
                     format_table(columns, rows));
}

std::string legend() {
  return "ran         mode x buckets; a>b: planned as a, fell back to b\n"
         "on the wire bytes that one worker hands to the reducer in a step\n"
         "step        wall time among threads of this machine, median without the first step\n"
         "x dense     dense's time / this time, in the same run\n"
         "answer      checked in every step on every worker. exact: the true sum, rounded once;\n"
         "            = dense: bit for bit what dense all-reduce gave; as dense: within what\n"
         "            adding floats one by one may round; nmse: lossy, the same on all workers,\n"
         "            squared error of the mean / mean squared norm of the workers' gradients\n"
         "est. 1G ..  ESTIMATE of a step on a link of 1, 10, 100 Gbit/s: codec time of one worker\n"
         "            + wire bytes / bandwidth (no latency, no overlap; dense: its bytes only)\n";
}

nlohmann::json model_json(const ModelOutcome& outcome) {
  const DemoOutcome* dense = find_dense(outcome);
  nlohmann::json codecs = nlohmann::json::array();
  for (const DemoOutcome& codec : outcome.codecs)
    codecs.push_back(codec_json(codec, dense));
  return {
      {"name", outcome.model->name},     {"description", outcome.model->description},
      {"count", outcome.model->count()}, {"dense_bytes", outcome.codecs.front().dense_bytes()},
      {"results", std::move(codecs)},
  };
}

}  // namespace addend::cli
