// SPDX-License-Identifier: Apache-2.0
// One worker of a job, for tests that need processes: does a step for each line on stdin and prints
// what came of it. JOB is the name of a job, or tenant/job with the job's own key.
// With `fork` it does nothing but leave a child behind, which stays until stdin ends.
// Usage: service_worker HOST:PORT KEY_HEX JOB WORLD WORKER steps|planes|fork [RETURN_S]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <unistd.h>

#include "addend/codec.h"
#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "wire/half.h"
#include "wire/hash.h"

namespace addend {
namespace {

constexpr uint64_t kCount = 4096;
constexpr uint64_t kLanes = 400'000;  // several turns of every slot
constexpr uint64_t kGradients = 6;    // steps with one; in later steps only residuals are left

[[noreturn]] void stop(const Error& error) {
  std::printf("error %s %s\n", errc_name(error.code), error.message.c_str());
  std::exit(1);
}

ServiceReducerOptions options_of(int argc, char** argv) {
  ServiceReducerOptions options;
  options.access.aggregator = argv[1];
  const std::string job = argv[3];
  const std::size_t slash = job.find('/');
  options.access.identity = slash == std::string::npos ? "lab" : job;
  options.job = job.substr(slash + 1);
  const std::string hex = argv[2];
  for (std::size_t i = 0; i < options.access.key.bytes.size(); ++i)
    options.access.key.bytes[i] =
        static_cast<uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  options.world = static_cast<uint32_t>(std::stoul(argv[4]));
  options.worker = static_cast<uint32_t>(std::stoul(argv[5]));
  if (argc > 7) options.return_timeout = std::chrono::seconds(std::stoul(argv[7]));
  return options;
}

float element(uint32_t worker, uint64_t step, uint64_t i) {
  if (step >= kGradients) return 0;
  return static_cast<float>(worker + 1) * (static_cast<float>(i % 13) - 6) +
         static_cast<float>(step);
}

// Steps of a lossy codec with feedback through a pipeline: all a user has to do with a quorum.
void run_steps(Reducer& reducer) {
  Layout layout;
  layout.count = kCount;
  layout.world = reducer.world();
  layout.worker = reducer.worker();
  auto codec = create_codec(*CodecSpec::parse("quant:bits=8,feedback=float"), layout);
  if (!codec) stop(codec.error());
  auto pipeline = create_pipeline(reducer, {4, std::chrono::minutes(10)});
  if (!pipeline) stop(pipeline.error());
  std::string line;
  for (uint64_t step = 0; std::getline(std::cin, line); ++step) {
    std::vector<float> gradient(kCount);
    for (uint64_t i = 0; i < kCount; ++i)
      gradient[i] = element(layout.worker, step, i);
    const auto ticket = (*pipeline)->submit(**codec, gradient.data());
    if (!ticket) stop(ticket.error());
    if (const Status status = (*pipeline)->wait(*ticket); !status) stop(status.error());
    uint64_t digest = 0;
    for (const float value : gradient)
      digest = addend_mix64(digest ^ addend_f32_bits(value));
    std::printf("%llu %u %llu %016llx", static_cast<unsigned long long>(step),
                (*codec)->report().contributors,
                static_cast<unsigned long long>((*codec)->report().missing),
                static_cast<unsigned long long>(digest));
    for (uint64_t i = 0; i < 13; ++i)
      std::printf(" %.9g", static_cast<double>(gradient[i]));
    std::printf("\n");
    std::fflush(stdout);
  }
}

// Integers, so that every lane of a sum over any set of workers is known exactly.
Status sum_planes(Reducer& reducer, uint64_t step, std::vector<int32_t>& lanes) {
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  const Reducer::Claim claims[] = {{"the step", step}};
  ADDEND_TRY(reducer.agree(claims, deadline));
  for (uint64_t i = 0; i < kLanes; ++i)
    lanes[i] = static_cast<int32_t>((i + step) << reducer.worker());
  Round round;
  round.add({Op::kSumI32, kLanes, lanes.data(), nullptr, nullptr});
  return reducer.reduce(round, deadline);
}

void run_planes(Reducer& reducer) {
  std::vector<int32_t> lanes(kLanes);
  std::string line;
  for (uint64_t step = 0; std::getline(std::cin, line); ++step) {
    uint32_t repeats = 0;
    Status status = sum_planes(reducer, step, lanes);
    for (; !status && status.error().code == Errc::kChanged; ++repeats)
      status = sum_planes(reducer, step, lanes);
    if (!status) stop(status.error());
    const uint64_t present = ((uint64_t{1} << reducer.world()) - 1) & ~reducer.missing();
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < kLanes; ++i)
      wrong += lanes[i] != static_cast<int32_t>((i + step) * present) ? 1 : 0;
    std::printf("%llu %llu %u %llu\n", static_cast<unsigned long long>(step),
                static_cast<unsigned long long>(reducer.missing()), repeats,
                static_cast<unsigned long long>(wrong));
    std::fflush(stdout);
  }
}

// As a data loader does: the child has all that its parent had open.
void run_fork() {
  if (fork() == 0) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    _exit(0);
  }
  std::printf("forked\n");
  std::fflush(stdout);
  pause();
}

void run(Reducer& reducer, const std::string& mode) {
  if (mode == "steps") return run_steps(reducer);
  if (mode == "planes") return run_planes(reducer);
  run_fork();
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  auto reducer = addend::create_service_reducer(addend::options_of(argc, argv));
  if (!reducer) addend::stop(reducer.error());
  addend::run(**reducer, argv[6]);
  return 0;
}
