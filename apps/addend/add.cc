// SPDX-License-Identifier: Apache-2.0
// addend add: folds compressed gradient files. Knows planes, not codecs.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "addend/file.h"
#include "apps/addend/command.h"
#include "apps/addend/output.h"
#include "apps/addend/table.h"

namespace addend::cli {

namespace {

struct AddOptions {
  std::vector<std::string> inputs;
  std::string output;
  bool force = false;
};

/// With --force, `add DIR/*.add -o DIR/sum.add` would add an old sum to its own parts.
Status check_not_an_input(const AddOptions& options) {
  for (const std::string& input : options.inputs) {
    std::error_code absent;
    if (std::filesystem::equivalent(input, options.output, absent)) {
      return make_error(Errc::kInvalidArgument, options.output + ": is an input and the output");
    }
  }
  return {};
}

Result<AddFile> fold_all(const std::vector<std::string>& inputs) {
  FileProgress progress("adding", inputs.size());
  progress.step(inputs.front());
  auto sum = read_add_file(inputs.front());
  for (std::size_t i = 1; sum && i < inputs.size(); ++i) {
    progress.step(inputs[i]);
    auto next = read_add_file(inputs[i]);
    if (!next) return next.error();
    Status folded = fold_files(*sum, *next);
    if (folded) continue;
    return make_error(folded.error().code, fmt::format("{}: cannot be added to {}: {}", inputs[i],
                                                       inputs.front(), folded.error().message));
  }
  return sum;
}

Status run_add(const AddOptions& options) {
  ADDEND_TRY(check_output(options.output, options.force ? Overwrite::kAllow : Overwrite::kRefuse));
  ADDEND_TRY(check_not_an_input(options));
  auto sum = fold_all(options.inputs);
  if (!sum) return sum.error();
  ADDEND_TRY(write_add_file(options.output, *sum));
  fmt::print("{}: {} gradient{} of shape {}, {}\n", options.output, sum->contributors,
             sum->contributors == 1 ? "" : "s", format_shape(sum->shape),
             format_bytes(static_cast<double>(sum->planes.bytes())));
  return {};
}

}  // namespace

void add_add_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("add", "Add compressed gradient files without decoding");
  auto options = std::make_shared<AddOptions>();
  command->add_option("files", options->inputs, ".add files packed with one plan, or sums of such")
      ->required()
      ->type_name("FILE");
  command->add_option("-o,--output", options->output, "where the sum goes")
      ->required()
      ->type_name("FILE");
  command->add_flag("--force", options->force, "replace the output if it exists");
  command->footer(
      "Memory: one sum and one input, however many there are.\n\n"
      "Examples:\n"
      "  addend add packed/*.add -o sum.add\n"
      "  addend add sum.add late.add -o sum2.add     sums can be added again\n");
  command->callback([options, &exit] {
    const Status status = run_add(*options);
    exit.code = status ? 0 : fail(status.error());
  });
}

}  // namespace addend::cli
