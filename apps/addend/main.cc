// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <new>

#include <fmt/format.h>

#include "addend/simd.h"
#include "apps/addend/command.h"

namespace addend::cli {

int fail(const Error& error) {
  fmt::print(stderr, "addend: error: {}: {}\n", errc_name(error.code), error.message);
  return 1;
}

namespace {

void choose_simd(const std::string& name) {
  Status status = force_simd_target(name);
  if (!status) throw CLI::ValidationError("--simd", status.error().message);
}

int run(int argc, char** argv) {
  CLI::App app("Addend: gradients that add while compressed", "addend");
  app.set_version_flag("--version", std::string("addend ") + ADDEND_VERSION);
  app.footer(
      "Examples:\n"
      "  addend demo                     all-reduce realistic gradients through every codec\n"
      "  addend perf -b 1M -e 64M -f 4   sweep sizes, against dense\n"
      "  addend COMMAND --help           options and examples of a command\n");
  // Global options may stand behind the subcommand too.
  app.fallthrough();
  app.require_subcommand(0, 1);
  app.add_option_function<std::string>(
         "--simd", choose_simd, "run every kernel on this target, e.g. scalar, AVX2 (see doctor)")
      ->type_name("NAME")
      ->envname("ADDEND_SIMD");

  Exit exit;
  add_perf_command(app, exit);
  add_bench_command(app, exit);
  add_try_command(app, exit);
  add_pack_command(app, exit);
  add_add_command(app, exit);
  add_unpack_command(app, exit);
  add_info_command(app, exit);
  add_doctor_command(app, exit);
  add_demo_command(app, exit);
  add_plan_command(app, exit);
  add_replay_command(app, exit);
#ifdef ADDEND_HAVE_SERVICE
  add_serve_command(app, exit);
  add_job_command(app, exit);
  add_keygen_command(app, exit);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has a code for each kind of mistake; scripts only need to tell them from failed jobs.
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (app.get_subcommands().empty()) fmt::print("{}", app.help());
  return exit.code;
}

}  // namespace

}  // namespace addend::cli

int main(int argc, char** argv) {
  try {
    return addend::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return addend::cli::fail({addend::Errc::kOutOfMemory, "this machine has too little memory"});
  } catch (const std::exception& error) {
    return addend::cli::fail({addend::Errc::kUnavailable, error.what()});
  }
}
