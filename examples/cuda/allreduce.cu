// SPDX-License-Identifier: Apache-2.0
// Two workers of this process, each with a gradient on the device, add them while compressed: only
// compressed planes cross the bus. Build: nvcc allreduce.cu -laddend -lpthread, with
// libaddend_cuda.so beside libaddend.so.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <addend/addend.h>
#include <cuda_runtime.h>

namespace {

constexpr int kWorld = 2, kCount = 10'000'000;

void check(addend_status status, const char* what) {
  if (status == ADDEND_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, addend_status_name(status), addend_last_error());
  std::exit(1);
}
void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

// Worker w has every 20th element, shifted by w; all share every 60th.
float element(int worker, int i) {
  return (i + worker) % 20 == 0 || i % 60 == 0 ? 1.0f + static_cast<float>(worker) : 0.0f;
}

void run_worker(int worker, addend_reducer* host) {
  addend_reducer* reducer = nullptr;
  check(addend_staged_create(host, 0, &reducer), "addend_staged_create");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");

  addend_layout layout;
  addend_layout_init(&layout, sizeof layout);
  layout.count = kCount;
  layout.world = kWorld;
  layout.worker = static_cast<uint32_t>(worker);
  layout.device = ADDEND_DEVICE_CUDA;
  layout.stream = stream;
  addend_codec* codec = nullptr;
  check(addend_codec_create("exact", &layout, &codec), "addend_codec_create");

  std::vector<float> values(kCount);
  for (int i = 0; i < kCount; ++i)
    values[i] = element(worker, i);
  float* gradient = nullptr;
  check(cudaMalloc(&gradient, kCount * sizeof(float)), "cudaMalloc");
  check(cudaMemcpyAsync(gradient, values.data(), kCount * sizeof(float), cudaMemcpyDefault, stream),
        "cudaMemcpyAsync");

  addend_pipeline* pipeline = nullptr;
  uint64_t ticket = 0;
  check(addend_pipeline_create(reducer, 0, 0, &pipeline), "addend_pipeline_create");
  check(addend_pipeline_submit(pipeline, codec, gradient, &ticket), "addend_pipeline_submit");
  check(addend_pipeline_wait(pipeline, ticket), "addend_pipeline_wait");
  // The sum is there in the order of the stream: whatever is enqueued now sees it.
  check(cudaMemcpyAsync(values.data(), gradient, kCount * sizeof(float), cudaMemcpyDefault, stream),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (int i = 0; i < kCount; ++i) {
    const float expected = element(0, i) + element(1, i);
    if (values[i] == expected) continue;
    std::fprintf(stderr, "element %d is %g, not %g\n", i, values[i], expected);
    std::exit(1);
  }

  addend_report report{};
  report.size = sizeof report;
  check(addend_codec_report(codec, &report), "addend_codec_report");
  if (worker == 0)
    std::printf("%s on the device: %llu bytes over the bus instead of %llu\n", report.mode,
                static_cast<unsigned long long>(report.wire_bytes),
                static_cast<unsigned long long>(report.dense_bytes));
  addend_pipeline_destroy(pipeline);
  addend_codec_destroy(codec);
  addend_reducer_destroy(reducer);
  cudaFree(gradient);
  cudaStreamDestroy(stream);
}

}  // namespace

int main() {
  addend_reducer* reducers[kWorld];
  check(addend_local_create(kWorld, reducers), "addend_local_create");
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorld; ++worker)
    workers.emplace_back(run_worker, worker, reducers[worker]);
  for (std::thread& worker : workers)
    worker.join();
  return 0;
}
