// SPDX-License-Identifier: Apache-2.0
// Four workers (threads) sum sparse gradients; the planes that travel between them are a tenth of
// the dense ones.
#include <cstdio>
#include <thread>
#include <vector>

#include <addend/pipeline.h>

int main() {
  constexpr uint32_t kWorld = 4;
  auto group = addend::create_local_group(kWorld);
  std::vector<std::thread> workers;
  std::vector<int> failures(kWorld, 0);
  for (uint32_t w = 0; w < kWorld; ++w) {
    workers.emplace_back([&, w] {
      std::vector<float> gradient(1 << 20, 0.0f);
      for (std::size_t i = w; i < gradient.size(); i += 100)
        gradient[i] = 0.5f;

      addend::Layout layout;
      layout.count = gradient.size();
      layout.world = kWorld;
      layout.worker = w;
      auto codec = addend::create_codec(*addend::CodecSpec::parse("exact"), layout);
      const auto reducer = (*group)->reducer(w);
      auto pipeline = addend::create_pipeline(*reducer);
      const auto ticket = (*pipeline)->submit(**codec, gradient.data());
      const addend::Status status = (*pipeline)->wait(*ticket);
      if (!status) std::fprintf(stderr, "worker %u: %s\n", w, status.error().message.c_str());

      for (std::size_t i = 0; i < gradient.size(); ++i) {
        failures[w] += gradient[i] != (i % 100 < kWorld ? 0.5f : 0.0f) ? 1 : 0;
      }
      if (w == 0) {
        const addend::Report& report = (*codec)->report();
        std::printf("%llu bytes instead of %llu\n",
                    static_cast<unsigned long long>(report.wire_bytes),
                    static_cast<unsigned long long>(report.dense_bytes));
      }
    });
  }
  for (std::thread& worker : workers)
    worker.join();
  for (const int wrong : failures) {
    if (wrong != 0) return 1;
  }
  return 0;
}
