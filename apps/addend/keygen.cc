// SPDX-License-Identifier: Apache-2.0
// addend keygen: a pre-shared key for the aggregation service.
#include <memory>
#include <string>

#include <fmt/format.h>

#include "addend/service.h"
#include "apps/addend/command.h"
#include "apps/addend/key_file.h"

namespace addend::cli {
namespace {

int run_keygen(const std::string& path) {
  const auto key = generate_service_key();
  if (!key) return fail(key.error());
  const Status status = write_key_file(path, *key);
  if (!status) return fail(status.error());
  fmt::print("{}: a new key, readable by its owner only\n", path);
  return 0;
}

}  // namespace

void add_keygen_command(CLI::App& app, Exit& exit) {
  CLI::App* command = app.add_subcommand("keygen", "Make a key for the aggregation service");
  auto path = std::make_shared<std::string>();
  command->add_option("file", *path, "where to write it; must not exist")->required();
  command->footer(
      "The same file goes to the server (a tenant's key_file) and to that tenant's workers, over "
      "a\n"
      "channel you trust. It never appears in arguments, environment or logs.\n\n"
      "Example:\n"
      "  addend keygen lab.key\n");
  command->callback([path, &exit] { exit.code = run_keygen(*path); });
}

}  // namespace addend::cli
