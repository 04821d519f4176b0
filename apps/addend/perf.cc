// SPDX-License-Identifier: Apache-2.0
// addend perf: all-reduce speed over a sweep of sizes, in the habit of nccl-tests.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/addend/codecs.h"
#include "apps/addend/command.h"
#include "apps/addend/key_file.h"
#include "apps/addend/machine.h"
#include "apps/addend/perf_rank.h"
#include "apps/addend/table.h"
#include "apps/addend/worker.h"

namespace addend::cli {

namespace {

struct PerfOptions {
  uint64_t begin_bytes = uint64_t{1} << 20;
  uint64_t end_bytes = uint64_t{64} << 20;
  uint32_t factor = 4;
  std::vector<std::string> codecs{"dense", "exact"};
  std::string dtype = "f32";
  std::string overlap = "random";
  std::string values = "normal";
  std::string reducer = "local";
  uint32_t workers = 4;
  int worker = -1;  // service, mesh: be this one
  MeshOptions mesh;
  AccessOptions access;
  std::vector<std::string> leaves;  // service: of a tree
  ServiceReducerOptions service;
  std::string fallback = "none";
  double return_s = 10;  // service with a fallback: how long to wait for a server that is gone
  bool json = false;
  PerfPlan plan;
};

constexpr const char* kFooter =
    "Columns: algbw = dense bytes / time, busbw = algbw * 2 (n - 1) / n (as nccl-tests defines "
    "them);\n"
    "wire = bytes one worker hands to the reducer; x dense = dense's time / this time in the same "
    "run;\n"
    "nmse = squared error of the mean / mean squared norm of the workers' gradients;\n"
    "#wrong = elements farther from a double-precision sum than dense float addition may be. For\n"
    "lossy codecs (quant): NaN or infinities where they do not belong, and everything if the nmse\n"
    "is above 2 (4 / (2^bits - 1))^2 (without rotation: if an element is off by more than twice "
    "the\n"
    "range) or if ranks got different answers. A service whose job does not allow floats may be "
    "off by\n"
    "what docs/service.md says.\n"
    "Sizes take K, M, G (powers of 1024). Exit code 1 if any element is wrong.\n\n"
    "Examples:\n"
    "  addend perf -b 1M -e 256M -f 4 --density 0.01\n"
    "  addend perf -b 64M -e 64M --codec exact:mode=packed --codec exact:mode=sketch --overlap "
    "none\n"
    "  addend perf --codec quant --codec quant:bits=2 --density 1 --workers 8\n"
    "  addend perf --rows 64 --density 0.05 --dtype bf16 --workers 8 --json\n"
    "  mpirun -n 4 addend perf --reducer mpi -b 16M -e 16M\n"
    "  addend perf --reducer mesh --peers a:7600,b:7600,c:7600 --worker 0\n"
    "  addend perf --reducer service --aggregator agg:7700 --key lab.key --identity lab --worker 0 "
    "--piece 4M\n"
    "  mpirun -n 4 addend perf --reducer service --fallback mpi --aggregator agg:7700 --key "
    "lab.key\n";

std::vector<Column> make_columns(const std::vector<std::string>& codecs) {
  std::size_t codec_width = 0;
  for (const std::string& codec : codecs)
    codec_width = std::max(codec_width, codec.size());
  return {
      {"size", Align::kRight, 11},          {"count", Align::kRight, 10},
      {"codec", Align::kLeft, codec_width}, {"mode", Align::kLeft, 9},
      {"union", Align::kRight, 7},          {"wire", Align::kRight, 11},
      {"time us", Align::kRight, 10},       {"algbw", Align::kRight, 6},
      {"busbw", Align::kRight, 6},          {"x dense", Align::kRight, 7},
      {"nmse", Align::kRight, 7},           {"#wrong", Align::kRight, 6},
  };
}

Row row_cells(const PerfRow& row) {
  const std::string mode =
      row.fallback == "none" ? row.mode : fmt::format("{}>{}", row.mode, row.fallback);
  return {std::to_string(row.bytes),
          std::to_string(row.count),
          row.codec,
          mode,
          fmt::format("{:.2f}%", row.union_density * 100),
          std::to_string(row.wire_bytes),
          fmt::format("{:.1f}", row.time_us),
          fmt::format("{:.2f}", row.algbw),
          fmt::format("{:.2f}", row.busbw),
          fmt::format("{:.2f}", row.vs_dense),
          format_error(row.nmse),
          std::to_string(row.wrong)};
}

nlohmann::json row_json(const PerfRow& row) {
  return {
      {"bytes", row.bytes},
      {"count", row.count},
      {"codec", row.codec},
      {"mode", row.mode},
      {"fallback", row.fallback},
      {"rounds", row.rounds},
      {"union_density", row.union_density},
      {"wire_bytes", row.wire_bytes},
      {"time_us", row.time_us},
      {"mean_us", row.mean_us},
      {"algbw_gb_per_s", row.algbw},
      {"busbw_gb_per_s", row.busbw},
      {"times_dense", row.vs_dense},
      {"nmse", row.nmse},
      {"wrong", row.wrong},
  };
}

Status complete_plan(PerfOptions& options) {
  PerfPlan& plan = options.plan;
  workload::GradientSpec& gradient = plan.gradient;
  gradient.dtype = parse_dtype(options.dtype);
  gradient.world = options.workers;
  gradient.overlap = options.overlap == "none"   ? workload::Overlap::kNone
                     : options.overlap == "full" ? workload::Overlap::kFull
                                                 : workload::Overlap::kRandom;
  gradient.values = options.values == "lognormal"  ? workload::Values::kLognormal
                    : options.values == "integers" ? workload::Values::kIntegers
                                                   : workload::Values::kNormal;
  ADDEND_TRY(validate(gradient));
  if (options.begin_bytes > options.end_bytes) {
    return make_error(Errc::kInvalidArgument, "the sweep ends (-e) before it begins (-b)");
  }
  if (options.begin_bytes == 0) {
    return make_error(Errc::kInvalidArgument, "the sweep must begin (-b) above 0 bytes");
  }
  for (uint64_t bytes = options.begin_bytes; bytes <= options.end_bytes; bytes *= options.factor) {
    plan.sizes.push_back(bytes);
    if (bytes > options.end_bytes / options.factor) break;
  }
  Layout layout;
  layout.dtype = gradient.dtype;
  layout.count = 1;
  layout.world = options.workers;
  auto specs = parse_codecs(options.codecs, layout);
  if (!specs) return specs.error();
  plan.codecs = *std::move(specs);
  return {};
}

std::string reducer_words(const PerfOptions& options) {
  if (options.reducer == "mpi") return "MPI";
  if (options.reducer == "mesh") return "mesh";
  if (options.reducer == "service" && !options.leaves.empty())
    return fmt::format("a tree of {} leaves", options.leaves.size());
  if (options.reducer == "service") return "service at " + options.access.aggregator;
  return "threads";
}

void print_preamble(const PerfOptions& options) {
  const workload::GradientSpec& gradient = options.plan.gradient;
  fmt::print("# {}\n", summarize(describe_machine()));
  fmt::print(
      "# {} workers ({}), {}, density {:g} a worker, overlap {}, rows of {}, {} values, seed {}\n",
      gradient.world, reducer_words(options), options.dtype, gradient.density, options.overlap,
      gradient.row, options.values, gradient.seed);
  fmt::print("# {} warm-up and {} timed iterations; median of the slowest worker's time\n",
             options.plan.warmup, options.plan.iterations);
  if (options.plan.piece_bytes > 0) {
    fmt::print("# in pieces of {} bytes; mode is that of the first\n", options.plan.piece_bytes);
  }
}

nlohmann::json document(const PerfOptions& options, nlohmann::json rows) {
  const workload::GradientSpec& gradient = options.plan.gradient;
  return {
      {"machine", to_json(describe_machine())},
      {"workers", gradient.world},
      {"reducer", options.reducer},
      {"dtype", options.dtype},
      {"density", gradient.density},
      {"overlap", options.overlap},
      {"rows", gradient.row},
      {"values", options.values},
      {"seed", gradient.seed},
      {"warmup", options.plan.warmup},
      {"iterations", options.plan.iterations},
      {"piece_bytes", options.plan.piece_bytes},
      {"threads", options.plan.threads},
      {"results", std::move(rows)},
  };
}

/// Prints on rank 0 only; every rank counts what was wrong, so that all exit alike.
class Printer {
 public:
  Printer(const PerfOptions& options, bool prints)
      : options_(options), columns_(make_columns(options.codecs)), prints_(prints) {
    if (!prints_ || options_.json) return;
    print_preamble(options_);
    fmt::print("{}\n", format_header(columns_));
    std::fflush(stdout);
  }
  void add(const PerfRow& row) {
    wrong_ += row.wrong;
    if (!prints_) return;
    if (options_.json) {
      rows_.push_back(row_json(row));
      return;
    }
    fmt::print("{}\n", format_row(columns_, row_cells(row)));
    std::fflush(stdout);
  }
  int finish() {
    if (prints_ && options_.json) fmt::print("{}\n", document(options_, std::move(rows_)).dump(2));
    if (wrong_ == 0) return 0;
    if (prints_) fmt::print(stderr, "addend: error: {} elements are wrong\n", wrong_);
    return 1;
  }

 private:
  const PerfOptions& options_;
  std::vector<Column> columns_;
  bool prints_;
  uint64_t wrong_ = 0;
  nlohmann::json rows_ = nlohmann::json::array();
};

int run_local(const PerfOptions& options) {
  Printer printer(options, true);
  Status status = run_workers(options.workers, [&](Reducer& reducer) {
    const bool first = reducer.worker() == 0;
    return run_perf_rank(reducer, options.plan, [&](const PerfRow& row) {
      if (first) printer.add(row);
    });
  });
  return status ? printer.finish() : fail(status.error());
}

int run_rank(PerfOptions& options, Reducer& reducer) {
  Printer printer(options, reducer.worker() == 0);
  Status status =
      run_perf_rank(reducer, options.plan, [&](const PerfRow& row) { printer.add(row); });
  return status ? printer.finish() : fail(status.error());
}

// A worker's way to the server, and where it goes on if that is lost.
Result<std::unique_ptr<Reducer>> reach_service(const PerfOptions& options, uint32_t worker,
                                               std::unique_ptr<Reducer> fallback) {
  ServiceReducerOptions service = options.service;
  service.worker = worker;
  // The last leaf that begins at this worker or before.
  for (std::size_t leaf = 0; leaf < options.leaves.size(); ++leaf) {
    if (leaf * options.workers / options.leaves.size() <= worker)
      service.access.aggregator = options.leaves[leaf];
  }
  if (fallback)
    service.return_timeout = std::chrono::milliseconds(std::lround(options.return_s * 1e3));
  auto reducer = create_service_reducer(service);
  if (!reducer || !fallback) return reducer;
  return create_fallback_reducer(*std::move(reducer), std::move(fallback), [=](const Error& why) {
    fmt::print(stderr, "addend: worker {} goes on without the server: {}\n", worker, why.message);
  });
}

// All workers as threads of this process, each with its own way to the server.
int run_service_threads(PerfOptions& options) {
  Printer printer(options, true);
  std::unique_ptr<LocalGroup> fallback;
  if (options.fallback == "local") {
    auto group = create_local_group(options.workers);
    if (!group) return fail(group.error());
    fallback = *std::move(group);
  }
  std::vector<Status> statuses(options.workers);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < options.workers; ++w) {
    threads.emplace_back([&, w] {
      auto reducer = reach_service(options, w, fallback ? fallback->reducer(w) : nullptr);
      statuses[w] = reducer ? run_perf_rank(**reducer, options.plan,
                                            [&](const PerfRow& row) {
                                              if (w == 0) printer.add(row);
                                            })
                            : Status(reducer.error());
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const Status& status : statuses) {
    if (!status) return fail(status.error());
  }
  return printer.finish();
}

int run_service(PerfOptions& options) {
  const auto access = make_access(options.access);
  if (!access) return fail(access.error());
  options.service.access = *access;
  std::unique_ptr<Reducer> mpi;
  if (options.fallback == "mpi") {
    auto made = create_mpi_reducer();
    if (!made) return fail(made.error());
    mpi = *std::move(made);
    options.workers = mpi->world();
    options.worker = static_cast<int>(mpi->worker());
  }
  options.service.world = options.workers;
  Status plan = complete_plan(options);
  if (!plan) return fail(plan.error());
  if (options.worker < 0) return run_service_threads(options);
  if (options.fallback == "local") {
    return fail({Errc::kInvalidArgument, "a single worker cannot fall back to threads"});
  }
  auto reducer = reach_service(options, static_cast<uint32_t>(options.worker), std::move(mpi));
  return reducer ? run_rank(options, **reducer) : fail(reducer.error());
}

// The reducer of this process, if workers are processes.
Result<std::unique_ptr<Reducer>> reach_others(PerfOptions& options) {
  if (options.reducer == "mpi") return create_mpi_reducer();
  if (options.mesh.peers.empty() || options.worker < 0) {
    return make_error(Errc::kInvalidArgument,
                      "a mesh needs all workers' addresses (--peers) and which of them this is "
                      "(--worker)");
  }
  options.mesh.worker = static_cast<uint32_t>(options.worker);
  options.mesh.link.latency_us = options.plan.network.latency_us;
  options.mesh.link.gbit_per_s = options.plan.network.gbit_per_s;
  options.plan.network.gathers = options.plan.network.narrows = true;
  return create_mesh_reducer(options.mesh);
}

int run_perf(PerfOptions& options) {
  if (options.reducer == "service") return run_service(options);
  std::unique_ptr<Reducer> others;
  if (options.reducer != "local") {
    auto reducer = reach_others(options);
    if (!reducer) return fail(reducer.error());
    others = *std::move(reducer);
    options.workers = others->world();
  }
  Status plan = complete_plan(options);
  if (!plan) return fail(plan.error());
  return others ? run_rank(options, *others) : run_local(options);
}

void add_sweep_options(CLI::App& command, PerfOptions& options) {
  command.add_option("-b,--begin", options.begin_bytes, "smallest size of the dense gradient")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("BYTES")
      ->default_str("1M");
  command.add_option("-e,--end", options.end_bytes, "largest size")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("BYTES")
      ->default_str("64M");
  command.add_option("-f,--factor", options.factor, "from one size to the next")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  command.add_option("-w,--warmup", options.plan.warmup, "iterations before timing")
      ->capture_default_str();
  command.add_option("-n,--iters", options.plan.iterations, "timed iterations")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void add_gradient_options(CLI::App& command, PerfOptions& options) {
  workload::GradientSpec& gradient = options.plan.gradient;
  add_dtype_option(command, options.dtype);
  command.add_option("--density", gradient.density, "non-zero fraction of each worker's gradient")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--overlap", options.overlap, "of the workers' non-zeros")
      ->check(CLI::IsMember({"none", "random", "full"}))
      ->capture_default_str();
  command.add_option("--rows", gradient.row, "elements that are zero or non-zero together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--values", options.values, "distribution of the non-zeros")
      ->check(CLI::IsMember({"normal", "lognormal", "integers"}))
      ->capture_default_str();
  command.add_option("--sigma", gradient.sigma, "deviation of the logarithm, for lognormal")
      ->check(CLI::Range(0.0, 20.0))
      ->capture_default_str();
  command.add_option("--seed", gradient.seed, "of gradients and codecs")->capture_default_str();
}

void add_service_options(CLI::App& command, PerfOptions& options) {
  add_access_options(command, options.access);
  command
      .add_option("--leaves", options.leaves,
                  "service: host:port of every leaf of a tree; worker w joins the one that has it")
      ->delimiter(',');
  command.add_option("--job", options.service.job, "service: name of the job")
      ->capture_default_str();
  command
      .add_option("--worker", options.worker,
                  "service, mesh: be this one worker; default with a service: all, as threads")
      ->check(CLI::Range(0, 4095));
  command
      .add_option("--peers", options.mesh.peers,
                  "mesh: host:port of every worker, in the same order everywhere")
      ->delimiter(',');
  command
      .add_option("--fallback", options.fallback,
                  "service: what to go on with if the server goes; mpi: ranks are the workers")
      ->check(CLI::IsMember({"none", "local", "mpi"}))
      ->capture_default_str();
  command
      .add_option("--return", options.return_s,
                  "service: seconds to wait for a server that is gone before that")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--slots", options.service.slots, "service: contributions in flight")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--payload", options.service.payload_bytes, "service: bytes of a frame")
      ->check(CLI::Range(8, 8832))
      ->capture_default_str();
}

}  // namespace

void add_perf_command(CLI::App& app, Exit& exit) {
  CLI::App* command =
      app.add_subcommand("perf", "Measure all-reduce over a sweep of sizes, against dense");
  auto options = std::make_shared<PerfOptions>();
  add_sweep_options(*command, *options);
  add_codec_option(*command, options->codecs);
  add_gradient_options(*command, *options);
  command
      ->add_option("--reducer", options->reducer,
                   "threads of this process, MPI ranks, processes that connect to each other, or "
                   "an aggregation server")
      ->check(CLI::IsMember({"local", "mpi", "mesh", "service"}))
      ->capture_default_str();
  add_service_options(*command, *options);
  command
      ->add_option("--workers", options->workers,
                   "threads; under MPI the ranks decide, in a mesh the peers")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--latency-us", options->plan.network.latency_us, "planner's hint: of one round")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--gbit", options->plan.network.gbit_per_s, "planner's hint: link speed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--piece", options->plan.piece_bytes,
                   "cut gradients into pieces of this size, which travel one behind the other; "
                   "default: whole")
      ->transform(CLI::AsSizeValue(false).description(""))
      ->type_name("BYTES");
  command
      ->add_option("--threads", options->plan.threads,
                   "of each worker, to encode and decode one gradient; 0: its share of the cores, "
                   "at most 4")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON document");
  command->footer(kFooter);
  command->callback([options, &exit] { exit.code = run_perf(*options); });
}

}  // namespace addend::cli
