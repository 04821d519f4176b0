// SPDX-License-Identifier: Apache-2.0
// Workers on a device and workers on the host in one group, through pipelines: the sums of a group
// that is all on the host. Likewise where planes stay on the device.
#include <functional>
#include <future>
#include <thread>

#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "tests/cuda/side_by_side.h"

namespace addend {
namespace {

using namespace testing_support;  // NOLINT: a test

constexpr uint64_t kSeed = 4711;

struct Job {
  std::string spec = "exact:choice=device";
  DType dtype = DType::kF32;
  uint64_t count = 600'011;
  uint32_t world = 3;
  uint32_t on_device = 0;  ///< bit w: worker w
  uint32_t buckets = 3;
  uint32_t steps = 3;
  enum class By : uint8_t { kStaged, kOwn, kFunction };
  By by =
      By::kStaged;  ///< kOwn: the group's own reducers; kFunction: one that takes devices' planes
};

/// What a function of a caller's may do: planes to the host, summed there, and back in the order of
/// the stream, for which it does not wait.
Status sum_by_host(const TestDevice& device, Reducer& host, std::vector<Bytes>& sums, Round& round,
                   Deadline deadline) {
  if (round.execution.device == Execution::Device::kCpu) return host.reduce(round, deadline);
  void* const stream = round.execution.stream;
  Round here = round;
  here.execution = {};
  std::vector<Bytes> indices;
  sums.clear();
  for (Plane& plane : here) {
    Bytes lanes(op_bytes(plane.op, plane.lanes));
    EXPECT_EQ(device.runtime()->copy(lanes.data(), plane.data, lanes.size(), stream), 0);
    EXPECT_EQ(device.runtime()->synchronize(stream), 0);
    const bool table = is_table_sum(plane.op);
    sums.push_back(table ? Bytes(op_sum_bytes(plane.op, plane.lanes)) : lanes);
    if (table) indices.push_back(lanes);
    plane.data = table ? indices.back().data() : sums.back().data();
    plane.sums = table ? sums.back().data() : nullptr;
  }
  ADDEND_TRY(host.reduce(here, deadline));
  for (std::size_t i = 0; i < round.size; ++i) {
    const Plane& plane = round.planes[i];
    void* to = is_table_sum(plane.op) ? plane.sums : plane.data;
    EXPECT_EQ(device.runtime()->copy(to, sums[i].data(), sums[i].size(), stream), 0);
  }
  return {};
}

/// What worker 0 has after each step.
std::vector<Bytes> sums_of(const Job& job) {
  auto group = create_local_group(job.world);
  EXPECT_TRUE(group);
  std::vector<std::vector<Bytes>> results(job.world);
  const auto worker = [&](uint32_t w) {
    const TestDevice device;
    std::unique_ptr<Reducer> reducer = (*group)->reducer(w), host;
    std::vector<Bytes> memory_of_function;
    if (job.by == Job::By::kStaged) {
      reducer = std::move(*create_staged_reducer(std::move(reducer), {1 << 16}));
    } else if (job.by == Job::By::kFunction) {
      host = std::move(reducer);
      const auto function = [&](Round& round, Deadline deadline) {
        return sum_by_host(device, *host, memory_of_function, round, deadline);
      };
      reducer = std::move(*create_custom_reducer({job.world, w, true}, function));
    }
    auto pipeline = create_pipeline(*reducer);
    ASSERT_TRUE(pipeline);
    const bool there = (job.on_device >> w & 1) != 0;
    Layout layout;
    layout.dtype = job.dtype;
    layout.count = job.count;
    layout.world = job.world;
    layout.worker = w;
    layout.scale = 1.0 / job.world;
    if (there) layout.execution = {Execution::Device::kCuda, device.stream()};
    std::vector<std::unique_ptr<Codec>> codecs;
    std::vector<std::unique_ptr<cuda::DeviceBuffer>> memory;
    for (uint32_t b = 0; b < job.buckets; ++b) {
      layout.bucket = b;
      auto codec = create_codec(*CodecSpec::parse(job.spec), layout);
      ASSERT_TRUE(codec) << codec.error().message;
      codecs.push_back(std::move(*codec));
      if (!there) continue;
      memory.push_back(std::make_unique<cuda::DeviceBuffer>(device.runtime()));
      ASSERT_TRUE(memory.back()->reserve(job.count * dtype_bytes(job.dtype) + 1));
    }
    for (uint32_t step = 0; step < job.steps; ++step) {
      std::vector<Bytes> gradients;
      std::vector<Ticket> tickets;
      for (uint32_t b = 0; b < job.buckets; ++b) {
        std::mt19937_64 random(kSeed + w + 100 * b + 10000 * step);
        gradients.push_back(random_gradient(layout, step == 1 ? 0.5 : 0.03, false, random));
      }
      for (uint32_t b = 0; b < job.buckets; ++b) {
        if (there) device.write(memory[b]->as<void>(), gradients[b]);
        void* gradient = there ? memory[b]->as<void>() : gradients[b].data();
        const auto ticket = (*pipeline)->submit(*codecs[b], gradient);
        ASSERT_TRUE(ticket) << ticket.error().message;
        tickets.push_back(*ticket);
      }
      for (uint32_t b = 0; b < job.buckets; ++b) {
        const Status status = (*pipeline)->wait(tickets[b]);
        ASSERT_TRUE(status) << status.error().message;
        if (there) gradients[b] = device.read(memory[b]->as<void>(), gradients[b].size());
        results[w].push_back(gradients[b]);
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < job.world; ++w)
    threads.emplace_back(worker, w);
  for (std::thread& thread : threads)
    thread.join();
  for (uint32_t w = 1; w < job.world; ++w)
    EXPECT_EQ(results[w], results[0]) << "worker " << w;
  return results[0];
}

class CudaStaged : public ::testing::Test {
 protected:
  void SetUp() override {
    const TestDevice device;
    if (!device.missing().empty()) GTEST_SKIP() << device.missing();
  }
};

TEST_F(CudaStaged, WorkersOnDeviceAndHostHaveTheSumsOfAHost) {
  for (const char* spec : {"exact:choice=device", "quant:index=auto,feedback=float"}) {
    for (const DType dtype : kTypes) {
      Job job;
      job.spec = spec;
      job.dtype = dtype;
      const std::vector<Bytes> expected = sums_of(job);
      for (const uint32_t mixed : {1u, 5u, 7u}) {
        job.on_device = mixed;
        EXPECT_EQ(sums_of(job), expected) << spec << ", devices " << mixed << ", seed " << kSeed;
      }
    }
  }
}

// The same of every other codec that runs on a device, with a host between two of them.
TEST_F(CudaStaged, EveryCodecHasTheSumsOfAHostInAMixedGroup) {
  for (const char* spec : {"exact:mode=gather", "exact:mode=sketch", "exact:mode=bloom",
                           "exact:choice=device,values=reproducible", "quant:bits=4",
                           "quant:carrier=indices", "cast:bf16", "cast:bf16,feedback=float",
                           "topk:0.05,index=packed", "random:0.05", "leader:0.05"}) {
    for (const DType dtype : kTypes) {
      Job job;
      job.spec = spec;
      job.dtype = dtype;
      job.count = 100'003;
      job.buckets = 2;
      const std::vector<Bytes> expected = sums_of(job);
      job.on_device = 5;
      EXPECT_EQ(sums_of(job), expected) << spec << " " << dtype_name(dtype) << ", seed " << kSeed;
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaStaged, DenseBucketsOfADeviceTravelInChunks) {
  Job job;
  job.spec = "dense";
  const std::vector<Bytes> expected = sums_of(job);
  job.on_device = 6;
  EXPECT_EQ(sums_of(job), expected);
}

TEST_F(CudaStaged, AGroupOfOneSumsPlanesWhereTheyAre) {
  for (const char* spec : {"exact:choice=device", "dense", "quant:bits=4", "cast:bf16",
                           "quant:bits=4,carrier=indices,feedback=float"}) {
    Job job;
    job.spec = spec;
    job.world = 1;
    const std::vector<Bytes> expected = sums_of(job);
    job.by = Job::By::kOwn;
    job.on_device = 1;
    EXPECT_EQ(sums_of(job), expected) << spec;
  }
}

TEST_F(CudaStaged, AFunctionIsGivenPlanesOfADeviceInTheirOrder) {
  for (const char* spec : {"exact:choice=device", "quant:bits=4,carrier=indices"}) {
    Job job;
    job.spec = spec;
    const std::vector<Bytes> expected = sums_of(job);
    job.by = Job::By::kFunction;
    for (const uint32_t mixed : {2u, 7u}) {
      job.on_device = mixed;
      EXPECT_EQ(sums_of(job), expected) << spec << ", devices " << mixed;
    }
  }
}

TEST_F(CudaStaged, AFunctionsWorkThatDoesNotEndIsATimeout) {
  const TestDevice device;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  const auto block = [](void* future) { static_cast<std::shared_future<void>*>(future)->wait(); };
  auto reducer = create_custom_reducer({1, 0, true}, [&](Round& round, Deadline) {
    EXPECT_NE(round.execution.stream, device.stream());
    EXPECT_EQ(device.runtime()->call_host(round.execution.stream, block, &released), 0);
    return Status();
  });
  ASSERT_TRUE(reducer);
  cuda::DeviceBuffer lanes(device.runtime());
  ASSERT_TRUE(lanes.reserve(64));
  Round round;
  round.add({Op::kSumI32, 16, lanes.as<void>(), nullptr, nullptr});
  round.execution = {Execution::Device::kCuda, device.stream()};
  const Status status =
      (*reducer)->reduce(round, std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kTimeout);
  EXPECT_EQ(device.runtime()->query_stream(device.stream()), 0) << "the codec's stream waits";
  (*reducer)->abandon();  // the caller's to end, and it does not before this returns
  release.set_value();
}

TEST_F(CudaStaged, APlanThatDiffersIsToldToAll) {
  auto group = create_local_group(2);
  ASSERT_TRUE(group);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      const TestDevice device;
      auto reducer = create_staged_reducer((*group)->reducer(w));
      auto pipeline = create_pipeline(**reducer);
      Layout layout;
      layout.count = 100'000;
      layout.world = 2;
      layout.worker = w;
      layout.seed = w;
      layout.execution = {Execution::Device::kCuda, device.stream()};
      auto codec = create_codec(*CodecSpec::parse("exact"), layout);
      ASSERT_TRUE(codec);
      cuda::DeviceBuffer gradient(device.runtime());
      ASSERT_TRUE(gradient.reserve(400'000));
      const Bytes before(400'000, 0x3C);
      device.write(gradient.as<void>(), before);
      const auto ticket = (*pipeline)->submit(**codec, gradient.as<void>());
      ASSERT_TRUE(ticket);
      const Status status = (*pipeline)->wait(*ticket);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
      EXPECT_EQ(device.read(gradient.as<void>(), 400'000), before);
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace
}  // namespace addend
