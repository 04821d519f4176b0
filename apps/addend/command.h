// SPDX-License-Identifier: Apache-2.0
// One function per subcommand: it adds itself to the command line and, when chosen, stores the exit
// code.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "addend/result.h"

namespace addend::cli {

/// Exit codes: 0 done, 1 the job failed, 2 the command line is wrong (CLI11's own).
struct Exit {
  int code = 0;
};

/// Prints "addend: error: <code>: <message>" to stderr and returns 1.
int fail(const Error& error);

void add_perf_command(CLI::App& app, Exit& exit);
void add_bench_command(CLI::App& app, Exit& exit);
void add_try_command(CLI::App& app, Exit& exit);
void add_pack_command(CLI::App& app, Exit& exit);
void add_add_command(CLI::App& app, Exit& exit);
void add_unpack_command(CLI::App& app, Exit& exit);
void add_info_command(CLI::App& app, Exit& exit);
void add_doctor_command(CLI::App& app, Exit& exit);
void add_demo_command(CLI::App& app, Exit& exit);
void add_plan_command(CLI::App& app, Exit& exit);
void add_replay_command(CLI::App& app, Exit& exit);
// Only in builds with the aggregation service.
void add_serve_command(CLI::App& app, Exit& exit);
void add_job_command(CLI::App& app, Exit& exit);
void add_keygen_command(CLI::App& app, Exit& exit);

}  // namespace addend::cli
