// SPDX-License-Identifier: Apache-2.0
// addend unpack: the sum that a compressed gradient file holds, as a NumPy array.
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "addend/file.h"
#include "addend/snapshot.h"
#include "apps/addend/command.h"
#include "apps/addend/output.h"
#include "apps/addend/snapshot_file.h"

namespace addend::cli {

namespace {

struct UnpackOptions {
  std::string input;
  std::string output;
  bool force = false;
};

Status run_unpack(const UnpackOptions& options) {
  ADDEND_TRY(check_output(options.output, options.force ? Overwrite::kAllow : Overwrite::kRefuse));
  auto file = read_snapshot_file(options.input);
  if (!file) return file.error();
  NpyArray array;
  array.dtype = file->plan.dtype;
  array.count = file->plan.count;
  array.shape = std::move(file->shape);
  const uint64_t per_word = sizeof(uint64_t) / dtype_bytes(array.dtype);
  array.storage.resize(array.count / per_word + (array.count % per_word != 0 ? 1 : 0));
  const Status decoded = decode_snapshot(file->plan, file->snapshot, array.data());
  if (!decoded) {
    return make_error(decoded.error().code, options.input + ": " + decoded.error().message);
  }
  ADDEND_TRY(write_npy(options.output, array));
  fmt::print("{}: sum of {} gradient{}, {} of shape {}\n", options.output, file->contributors,
             file->contributors == 1 ? "" : "s", dtype_name(array.dtype),
             format_shape(array.shape));
  return {};
}

}  // namespace

void add_unpack_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("unpack", "Decode a compressed gradient file or a sum");
  auto options = std::make_shared<UnpackOptions>();
  command->add_option("file", options->input, ".add file")->required()->type_name("FILE");
  command->add_option("-o,--output", options->output, ".npy file to write")
      ->required()
      ->type_name("FILE");
  command->add_flag("--force", options->force, "replace the output if it exists");
  command->footer(
      "The result is exact: the true sum, rounded once to the gradients' type. (Files packed with\n"
      "--codec dense hold floats that were rounded at every addition, and unpack gives those.) If "
      "the\n"
      "sum holds more non-zeros than its plan has room for, the error says what capacity would "
      "do.\n\n"
      "Examples:\n"
      "  addend unpack sum.add -o sum.npy\n");
  command->callback([options, &exit] {
    const Status status = run_unpack(*options);
    exit.code = status ? 0 : fail(status.error());
  });
}

}  // namespace addend::cli
