// SPDX-License-Identifier: Apache-2.0
// addend bench: kernels and codecs against memcpy in the same run, and whether the promised bars
// hold.
#include "apps/addend/bench.h"

#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/addend/command.h"
#include "apps/addend/machine.h"
#include "apps/addend/table.h"

namespace addend::cli {

namespace {

constexpr uint64_t kQuickCount = uint64_t{1} << 22;

struct BenchCommand {
  BenchOptions options;
  uint64_t count = 0;  ///< 0: the default of a full or a quick run
  bool json = false;
};

std::string verdict(const Bar& bar, bool quick) {
  if (bar.timed && quick) return "not judged";
  return bar.holds() ? "PASS" : "FAIL";
}

void print_codecs(const std::vector<CodecLine>& lines) {
  if (lines.empty()) return;
  std::vector<Row> rows;
  rows.reserve(lines.size());
  for (const CodecLine& line : lines) {
    rows.push_back(
        {line.subject, line.codec, line.mode, fmt::format("{:.2f}", line.encode_gb_per_s),
         fmt::format("{:.2f}", line.decode_gb_per_s), fmt::format("{:.2f}", line.memcpy_gb_per_s),
         fmt::format("{:.2f}", line.encode_x), fmt::format("{:.2f}", line.decode_x),
         fmt::format("{:.2f}", line.total_x), fmt::format("{:.2f}", line.ratio)});
  }
  fmt::print(
      "\nCodecs, one worker, one thread unless said; GB/s of the dense gradient, times in units of "
      "memcpy's\n\n{}",
      format_table({{"subject", Align::kLeft},
                    {"codec", Align::kLeft},
                    {"ran", Align::kLeft},
                    {"encode GB/s"},
                    {"decode GB/s"},
                    {"memcpy GB/s"},
                    {"encode x"},
                    {"decode x"},
                    {"both x"},
                    {"ratio"}},
                   rows));
}

void print_folds(const std::vector<FoldLine>& lines) {
  if (lines.empty()) return;
  std::vector<Row> rows;
  rows.reserve(lines.size());
  for (const FoldLine& line : lines) {
    rows.push_back({line.op, fmt::format("{:.2f}", line.fold_gb_per_s),
                    fmt::format("{:.2f}", line.memcpy_gb_per_s),
                    fmt::format("{:.2f}", line.rate_x)});
  }
  fmt::print(
      "\nFold, one thread; GB/s read\n\n{}",
      format_table({{"operation", Align::kLeft}, {"fold GB/s"}, {"memcpy GB/s"}, {"fold / memcpy"}},
                   rows));
}

void print_bars(const std::vector<Bar>& bars, bool quick) {
  std::vector<Row> rows;
  rows.reserve(bars.size());
  for (const Bar& bar : bars) {
    rows.push_back({bar.name, fmt::format("{:.4f}", bar.value),
                    fmt::format("{} {:g}", bar.at_most ? "<=" : ">=", bar.limit),
                    verdict(bar, quick)});
  }
  fmt::print(
      "\nBars\n\n{}",
      format_table({{"bar", Align::kLeft}, {"measured"}, {"promised"}, {"verdict", Align::kLeft}},
                   rows));
}

nlohmann::json to_json(const BenchOptions& options, const BenchResults& results) {
  using nlohmann::json;
  json codecs = json::array();
  for (const CodecLine& line : results.codecs) {
    codecs.push_back({{"subject", line.subject},
                      {"codec", line.codec},
                      {"mode", line.mode},
                      {"encode_gb_per_s", line.encode_gb_per_s},
                      {"decode_gb_per_s", line.decode_gb_per_s},
                      {"memcpy_gb_per_s", line.memcpy_gb_per_s},
                      {"encode_times_memcpy", line.encode_x},
                      {"decode_times_memcpy", line.decode_x},
                      {"total_times_memcpy", line.total_x},
                      {"wire_bytes", line.wire_bytes},
                      {"ratio", line.ratio}});
  }
  json folds = json::array();
  for (const FoldLine& line : results.folds) {
    folds.push_back({{"op", line.op},
                     {"fold_gb_per_s", line.fold_gb_per_s},
                     {"memcpy_gb_per_s", line.memcpy_gb_per_s},
                     {"rate_of_memcpy", line.rate_x}});
  }
  json bars = json::array();
  for (const Bar& bar : results.bars) {
    bars.push_back({{"name", bar.name},
                    {"value", bar.value},
                    {"limit", bar.limit},
                    {"at_most", bar.at_most},
                    {"verdict", verdict(bar, options.quick)}});
  }
  return {{"machine", cli::to_json(describe_machine())},
          {"count", options.count},
          {"repeats", options.repeats},
          {"seed", options.seed},
          {"quick", options.quick},
          {"codecs", std::move(codecs)},
          {"folds", std::move(folds)},
          {"bars", std::move(bars)}};
}

int run_bench(BenchCommand& command) {
  BenchOptions& options = command.options;
  if (options.quick) options.count = kQuickCount;
  if (command.count != 0) options.count = command.count;
  BenchResults results;
  for (auto part : {bench_codecs, bench_quant, bench_folds, bench_memory}) {
    Status status = part(options, results);
    if (!status) return fail(status.error());
  }
  std::size_t failed = 0;
  for (const Bar& bar : results.bars)
    failed += verdict(bar, options.quick) == "FAIL" ? 1 : 0;
  if (command.json) {
    fmt::print("{}\n", to_json(options, results).dump(2));
  } else {
    fmt::print("# {}\n# {} f32 elements, {} pairs with memcpy, seed {}{}\n",
               summarize(describe_machine()), options.count, options.repeats, options.seed,
               options.quick ? ", quick: times are shown, not judged" : "");
    print_codecs(results.codecs);
    print_folds(results.folds);
    print_bars(results.bars, options.quick);
    fmt::print("\nAll answers are right; {} of {} bars failed\n", failed, results.bars.size());
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

void add_bench_command(CLI::App& app, Exit& exit) {
  CLI::App* command =
      app.add_subcommand("bench", "Time kernels and codecs against memcpy and judge the bars");
  auto bench = std::make_shared<BenchCommand>();
  command->add_flag("--quick", bench->options.quick,
                    "small input; answers and bytes are judged, times only shown");
  command->add_option("--count", bench->count, "f32 elements (default 2^26, with --quick 2^22)")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->check(CLI::Range(uint64_t{1} << 16, uint64_t{1} << 32).description(""))
      ->type_name("COUNT");
  command->add_option("--repeats", bench->options.repeats, "pairs of memcpy and subject")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--only", bench->options.only, "only subjects whose name contains this")
      ->type_name("TEXT");
  command->add_option("--seed", bench->options.seed, "of gradients and codecs")
      ->capture_default_str();
  command->add_flag("--json", bench->json, "print one JSON document");
  command->footer(
      "memcpy and subject run in turn; factors are medians over pairs. Every answer is checked "
      "before\n"
      "it is timed. Exit code 1 if a bar fails.\n\n"
      "Examples:\n"
      "  addend bench\n"
      "  addend bench --only packed --repeats 31\n"
      "  addend bench --quick --json\n"
      "  addend --simd scalar bench --only fold\n");
  command->callback([bench, &exit] { exit.code = run_bench(*bench); });
}

}  // namespace addend::cli
