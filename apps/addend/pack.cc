// SPDX-License-Identifier: Apache-2.0
// addend pack: NumPy arrays into compressed gradient files that can be added. Without --plan all
// arrays are in memory at once, because the plan depends on all of them; with --plan one at a time.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "addend/file.h"
#include "addend/snapshot.h"
#include "apps/addend/command.h"
#include "apps/addend/output.h"
#include "apps/addend/snapshot_file.h"
#include "apps/addend/staging.h"
#include "apps/addend/table.h"

namespace addend::cli {

namespace {

struct PackOptions {
  std::vector<std::string> inputs;
  std::string directory;
  std::string plan;  ///< empty: choose one for the inputs
  std::string codec = "exact";
  double spare = 0.1;
  uint32_t contributors = SnapshotOptions{}.contributors;
  uint64_t seed = SnapshotOptions{}.seed;
  bool force = false;
};

/// What every array must agree with to be packed, and where that was learned.
struct Target {
  SnapshotPlan plan;
  std::vector<uint64_t> shape;
  std::string source;
};

GradientView view(const NpyArray& array) { return {array.data(), array.count, array.dtype}; }

Error at(const std::string& path, const Error& error) {
  return make_error(error.code, path + ": " + error.message);
}

/// The outputs' names, refused before any work if two inputs want the same one or one exists.
Result<std::vector<std::string>> output_names(const PackOptions& options) {
  std::vector<std::string> names;
  std::map<std::string, std::string> taken;
  for (const std::string& input : options.inputs) {
    const std::string name = std::filesystem::path(input).stem().string() + ".add";
    const std::string output = (std::filesystem::path(options.directory) / name).string();
    const auto [other, is_new] = taken.emplace(name, input);
    if (!is_new) {
      return make_error(Errc::kInvalidArgument, fmt::format("{} and {} would both become {}",
                                                            other->second, input, output));
    }
    ADDEND_TRY(check_output(output, options.force ? Overwrite::kAllow : Overwrite::kRefuse));
    names.push_back(name);
  }
  return names;
}

Status check_agreement(const NpyArray& array, const std::string& path, DType dtype,
                       const std::vector<uint64_t>& shape, const std::string& source) {
  if (array.dtype == dtype && array.shape == shape) return {};
  return make_error(
      Errc::kMismatch,
      fmt::format("{} is {} of shape {}, but {} is {} of shape {}", path, dtype_name(array.dtype),
                  format_shape(array.shape), source, dtype_name(dtype), format_shape(shape)));
}

Result<std::vector<NpyArray>> read_all(const std::vector<std::string>& paths) {
  std::vector<NpyArray> arrays;
  FileProgress progress("reading", paths.size());
  for (const std::string& path : paths) {
    progress.step(path);
    auto array = read_npy(path);
    if (!array) return array.error();
    arrays.push_back(std::move(*array));
    ADDEND_TRY(check_agreement(arrays.back(), path, arrays.front().dtype, arrays.front().shape,
                               paths.front()));
  }
  return arrays;
}

Result<SnapshotPlan> choose_plan(const PackOptions& options, const std::vector<NpyArray>& arrays) {
  auto codec = CodecSpec::parse(options.codec);
  if (!codec) return codec.error();
  if (options.contributors < arrays.size()) {
    return make_error(Errc::kInvalidArgument,
                      fmt::format("--contributors {} is less than the {} files given",
                                  options.contributors, arrays.size()));
  }
  SnapshotOptions snapshot;
  snapshot.codec = std::move(*codec);
  snapshot.seed = options.seed;
  snapshot.contributors = options.contributors;
  snapshot.spare = options.spare;
  std::vector<GradientView> views;
  views.reserve(arrays.size());
  for (const NpyArray& array : arrays)
    views.push_back(view(array));
  return plan_snapshots(views, snapshot);
}

/// Encodes one array and writes it to `path`. Returns the size of its planes.
Result<uint64_t> pack_one(const Target& target, const NpyArray& array, const std::string& input,
                          const std::string& path) {
  auto snapshot = encode_snapshot(target.plan, view(array));
  if (!snapshot) return at(input, snapshot.error());
  AddFile file;
  file.plan = target.plan.serialize();
  file.shape = target.shape;
  file.max_contributors = target.plan.contributors;
  file.storage = std::move(snapshot->storage);
  file.planes = snapshot->planes;
  ADDEND_TRY(write_add_file(path, file));
  return file.planes.bytes();
}

/// Packs the inputs into `staging`, from `arrays` where they are in memory already, each freed when
/// it is done.
Result<uint64_t> pack_all(const PackOptions& options, const Target& target,
                          std::vector<NpyArray> arrays, const std::vector<std::string>& names,
                          const Staging& staging) {
  FileProgress progress("packing", names.size());
  uint64_t bytes = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& input = options.inputs[i];
    progress.step(input);
    Result<NpyArray> array = arrays.empty() ? read_npy(input) : std::move(arrays[i]);
    if (!array) return array.error();
    ADDEND_TRY(check_agreement(*array, input, target.plan.dtype, target.shape, target.source));
    auto packed = pack_one(target, *array, input, staging.path(names[i]));
    if (!packed) return packed.error();
    bytes += *packed;
  }
  return bytes;
}

Result<Target> join_plan(const std::string& path) {
  auto file = read_snapshot_file(path);
  if (!file) return file.error();
  return Target{std::move(file->plan), std::move(file->shape), path};
}

void print_summary(const std::string& directory, const SnapshotPlan& plan, std::size_t files,
                   uint64_t packed_bytes) {
  const uint64_t dense_bytes = files * plan.count * dtype_bytes(plan.dtype);
  fmt::print("{}: {} file{}, {} (dense: {}), room for {} gradients\n", directory, files,
             files == 1 ? "" : "s", format_bytes(static_cast<double>(packed_bytes)),
             format_bytes(static_cast<double>(dense_bytes)), plan.contributors);
  if (packed_bytes > dense_bytes) fmt::print("These gradients are smaller with --codec dense.\n");
}

Status run_pack(const PackOptions& options) {
  auto names = output_names(options);
  if (!names) return names.error();
  std::vector<NpyArray> arrays;
  Target target;
  if (options.plan.empty()) {
    auto read = read_all(options.inputs);
    if (!read) return read.error();
    arrays = std::move(*read);
    auto plan = choose_plan(options, arrays);
    if (!plan) return plan.error();
    target = {std::move(*plan), arrays.front().shape, options.inputs.front()};
  } else {
    auto joined = join_plan(options.plan);
    if (!joined) return joined.error();
    target = std::move(*joined);
  }
  auto staging = Staging::create(options.directory);
  if (!staging) return staging.error();
  auto bytes = pack_all(options, target, std::move(arrays), *names, *staging);
  if (!bytes) return bytes.error();
  ADDEND_TRY(staging->publish(*names));
  print_summary(options.directory, target.plan, names->size(), *bytes);
  return {};
}

}  // namespace

void add_pack_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("pack", "Compress gradients into files that can be added");
  auto options = std::make_shared<PackOptions>();
  command->add_option("arrays", options->inputs, ".npy files: float32, float16 or bfloat16")
      ->required()
      ->type_name("FILE");
  command->add_option("-o,--output", options->directory, "directory for the .add files")
      ->required()
      ->type_name("DIR");
  CLI::Option* plan =
      command->add_option("--plan", options->plan, "join the plan of this .add file")
          ->type_name("FILE");
  command->add_option("--codec", options->codec, "exact or dense")
      ->capture_default_str()
      ->excludes(plan);
  command
      ->add_option("--spare", options->spare,
                   "room for non-zeros that only later gradients have, as a fraction")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->excludes(plan);
  command
      ->add_option("--contributors", options->contributors, "most gradients that may ever be added")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->excludes(plan);
  command->add_option("--seed", options->seed, "of the hash functions")
      ->capture_default_str()
      ->excludes(plan);
  command->add_flag("--force", options->force, "replace outputs that exist");
  command->footer(
      "All files of one call share one plan, sized for the sum of them all. Either every output\n"
      "file is written, or none is.\n\n"
      "Examples:\n"
      "  addend pack a.npy b.npy c.npy -o packed\n"
      "  addend pack d.npy --plan packed/a.add -o packed       join from elsewhere\n"
      "  addend pack a.npy -o packed --spare 1.0               room for as many non-zeros again\n");
  command->callback([options, &exit] {
    const Status status = run_pack(*options);
    exit.code = status ? 0 : fail(status.error());
  });
}

}  // namespace addend::cli
