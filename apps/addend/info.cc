// SPDX-License-Identifier: Apache-2.0
// addend info: what compressed gradient files hold.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "addend/snapshot.h"
#include "apps/addend/command.h"
#include "apps/addend/output.h"
#include "apps/addend/snapshot_file.h"
#include "apps/addend/table.h"

namespace addend::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Info {
  std::string path;
  SnapshotFile file;
  uint64_t file_bytes = 0;
  uint64_t dense_bytes = 0;
  uint64_t nonzeros = 0;

  /// How many times smaller than the array it came from.
  double ratio() const {
    return static_cast<double>(dense_bytes) / static_cast<double>(file_bytes);
  }
};

Result<Info> inspect(const std::string& path) {
  auto file = read_snapshot_file(path);
  if (!file) return file.error();
  std::error_code error;
  Info info;
  info.path = path;
  info.file_bytes = std::filesystem::file_size(path, error);
  if (error) return make_error(Errc::kIo, path + ": " + error.message());
  info.file = std::move(*file);
  info.dense_bytes = info.file.plan.count * dtype_bytes(info.file.plan.dtype);
  info.nonzeros = snapshot_nonzeros(info.file.plan, info.file.snapshot);
  return info;
}

Json to_json(const Info& info) {
  const SnapshotPlan& plan = info.file.plan;
  Json planes = Json::array();
  for (const Plane& plane : info.file.snapshot.planes) {
    planes.push_back({{"op", op_name(plane.op)},
                      {"lanes", plane.lanes},
                      {"bytes", op_bytes(plane.op, plane.lanes)}});
  }
  return {{"file", info.path},
          {"checksum", "ok"},
          {"shape", info.file.shape},
          {"contributors", info.file.contributors},
          {"plan",
           {{"codec", plan.dense ? "dense" : "exact"},
            {"dtype", dtype_name(plan.dtype)},
            {"count", plan.count},
            {"contributors", plan.contributors},
            {"seed", plan.seed},
            {"capacity", plan.capacity},
            {"cells", plan.cells},
            {"cell_words", plan.cell_words},
            {"quantum", plan.quantum},
            {"top", plan.top},
            {"non_finite", plan.non_finite},
            {"hashes", plan.hashes},
            {"starts", plan.starts},
            {"chunks", plan.chunks},
            {"table_rows", plan.table_rows}}},
          {"planes", planes},
          {"union_nonzeros", info.nonzeros},
          {"file_bytes", info.file_bytes},
          {"dense_bytes", info.dense_bytes},
          {"ratio", info.ratio()}};
}

std::string room_text(const Info& info) {
  const SnapshotPlan& plan = info.file.plan;
  if (plan.dense) return fmt::format("{} elements, all of them stored", plan.count);
  return fmt::format("{} of {} that the plan has room for{}", info.nonzeros, plan.capacity,
                     info.nonzeros > plan.capacity ? " (OUTGROWN, may not unpack)" : "");
}

std::string comparison_text(const Info& info) {
  if (info.dense_bytes == 0) return "dense would be empty";
  const double ratio = info.ratio();
  return fmt::format("{}x {} than dense ({})", format_number(ratio < 1 ? 1 / ratio : ratio),
                     ratio < 1 ? "larger" : "smaller",
                     format_bytes(static_cast<double>(info.dense_bytes)));
}

void print_text(const Info& info) {
  const SnapshotPlan& plan = info.file.plan;
  fmt::print("{}\n", info.path);
  fmt::print("  plan          {}, {}, {} elements of shape {}, seed {}\n",
             plan.dense ? "dense" : "exact", dtype_name(plan.dtype), plan.count,
             format_shape(info.file.shape), plan.seed);
  fmt::print("  contributors  {} of at most {}\n", info.file.contributors, plan.contributors);
  fmt::print("  non-zeros     {}\n", room_text(info));
  for (const Plane& plane : info.file.snapshot.planes) {
    fmt::print("  plane         {} x {}, {}\n", op_name(plane.op), plane.lanes,
               format_bytes(static_cast<double>(op_bytes(plane.op, plane.lanes))));
  }
  fmt::print("  size          {}, {}\n", format_bytes(static_cast<double>(info.file_bytes)),
             comparison_text(info));
  fmt::print("  checksum      ok\n");
}

/// A bad file does not hide the others, but it fails the command.
int run_info(const std::vector<std::string>& paths, bool json) {
  int code = 0;
  Json document = Json::array();
  for (const std::string& path : paths) {
    auto info = inspect(path);
    if (!info) {
      code = fail(info.error());
      document.push_back(
          {{"file", path},
           {"error", {{"code", errc_name(info.error().code)}, {"message", info.error().message}}}});
    } else if (json) {
      document.push_back(to_json(*info));
    } else {
      print_text(*info);
    }
  }
  // A path need not be UTF-8; JSON must.
  if (json) fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
  return code;
}

}  // namespace

void add_info_command(CLI::App& app, Exit& exit) {
  struct Options {
    std::vector<std::string> paths;
    bool json = false;
  };
  CLI::App* command = app.add_subcommand("info", "Describe compressed gradient files");
  auto options = std::make_shared<Options>();
  command->add_option("files", options->paths, ".add files")->required()->type_name("FILE");
  command->add_flag("--json", options->json, "print one JSON document: a list, one entry a file");
  command->footer(
      "Examples:\n"
      "  addend info packed/*.add\n"
      "  addend info sum.add --json | python3 -m json.tool\n");
  command->callback([options, &exit] { exit.code = run_info(options->paths, options->json); });
}

}  // namespace addend::cli
