// SPDX-License-Identifier: Apache-2.0
// Four workers (threads) sum sparse gradients; the planes that travel between them are a tenth of
// the dense ones.  usage: allreduce [CODEC], a lossless one
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <addend/pipeline.h>

namespace {

constexpr uint32_t kWorld = 4;
constexpr std::size_t kCount = 1 << 20;
constexpr std::size_t kApart = 100;

// What worker w has: every hundredth element from the wth on.
std::vector<float> make_gradient(uint32_t w) {
  std::vector<float> gradient(kCount, 0.0f);
  for (std::size_t i = w; i < kCount; i += kApart)
    gradient[i] = 0.5f;
  return gradient;
}

addend::Status check_sum(const std::vector<float>& sum) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (sum[i] == (i % kApart < kWorld ? 0.5f : 0.0f)) continue;
    return addend::make_error(addend::Errc::kUndecodable,
                              "element " + std::to_string(i) + " is " + std::to_string(sum[i]));
  }
  return {};
}

// Whatever can fail says so in what it returns: a value or an error, a status.
addend::Status work(addend::Reducer& reducer, const std::string& codec_name) {
  const auto spec = addend::CodecSpec::parse(codec_name);
  ADDEND_TRY(spec);
  addend::Layout layout;
  layout.count = kCount;
  layout.world = reducer.world();
  layout.worker = reducer.worker();
  const auto codec = addend::create_codec(*spec, layout);
  ADDEND_TRY(codec);
  const auto pipeline = addend::create_pipeline(reducer);
  ADDEND_TRY(pipeline);

  std::vector<float> gradient = make_gradient(reducer.worker());
  const auto ticket = (*pipeline)->submit(**codec, gradient.data());
  ADDEND_TRY(ticket);
  ADDEND_TRY((*pipeline)->wait(*ticket));
  ADDEND_TRY(check_sum(gradient));
  if (reducer.worker() == 0) {
    const addend::Report& report = (*codec)->report();
    std::printf("%llu bytes instead of %llu\n", static_cast<unsigned long long>(report.wire_bytes),
                static_cast<unsigned long long>(report.dense_bytes));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string codec = argc > 1 ? argv[1] : "exact";
  auto group = addend::create_local_group(kWorld);
  if (!group) {
    std::fprintf(stderr, "allreduce: %s\n", group.error().message.c_str());
    return 1;
  }
  std::vector<addend::Status> done(kWorld);
  std::vector<std::thread> workers;
  for (uint32_t w = 0; w < kWorld; ++w) {
    workers.emplace_back([&, w] {
      const auto reducer = (*group)->reducer(w);
      done[w] = work(*reducer, codec);
    });
  }
  for (std::thread& worker : workers)
    worker.join();
  int failed = 0;
  for (uint32_t w = 0; w < kWorld; ++w) {
    if (done[w]) continue;
    std::fprintf(stderr, "worker %u: %s\n", w, done[w].error().message.c_str());
    failed = 1;
  }
  return failed;
}
