// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/worker.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include <time.h>

namespace addend::cli {

namespace {

// Generous: a worker that failed is found by the others when it passes.
constexpr auto kPatience = std::chrono::seconds(120);

Deadline deadline() { return std::chrono::steady_clock::now() + kPatience; }

Status reduce_plane(Reducer& reducer, Op op, void* data, uint64_t lanes) {
  Round round;
  round.add({.op = op, .lanes = lanes, .data = data});
  return reducer.reduce(round, deadline());
}

}  // namespace

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

double thread_cpu_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Status run_workers(uint32_t world, const std::function<Status(Reducer&)>& work) {
  auto group = create_local_group(world);
  if (!group) return group.error();
  std::vector<Status> results(world);
  {
    std::vector<std::jthread> threads;
    for (uint32_t worker = 0; worker < world; ++worker) {
      threads.emplace_back(
          [&, worker, reducer = (*group)->reducer(worker)] { results[worker] = work(*reducer); });
    }
  }
  for (const Status& result : results) {
    // Timeouts are what the other workers see when one fails: the cause is more useful.
    if (!result && result.error().code != Errc::kTimeout) return result;
  }
  for (const Status& result : results)
    ADDEND_TRY(result);
  return {};
}

Status reduce_max(Reducer& reducer, std::span<float> values) {
  // The bit patterns of non-negative floats order like integers.
  return reduce_plane(reducer, Op::kMaxU32, values.data(), values.size());
}

Status reduce_sum(Reducer& reducer, std::span<int64_t> values) {
  // In quarters, whose sums 32 bits hold: whoever adds may have no wider lanes.
  std::vector<int32_t> quarters(values.size() * 4);
  for (std::size_t i = 0; i < quarters.size(); ++i)
    quarters[i] = static_cast<uint16_t>(static_cast<uint64_t>(values[i / 4]) >> i % 4 * 16);
  ADDEND_TRY(reduce_plane(reducer, Op::kSumI32, quarters.data(), quarters.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    uint64_t sum = 0;
    for (std::size_t q = 0; q < 4; ++q)
      sum += static_cast<uint64_t>(quarters[i * 4 + q]) << q * 16;
    values[i] = static_cast<int64_t>(sum);
  }
  return {};
}

Result<bool> all_equal(Reducer& reducer, uint64_t value) {
  const auto low = static_cast<uint32_t>(value), high = static_cast<uint32_t>(value >> 32);
  // The largest value and the complement of the smallest.
  std::array<uint32_t, 4> lanes{low, high, ~low, ~high};
  ADDEND_TRY(reduce_plane(reducer, Op::kMaxU32, lanes.data(), lanes.size()));
  return lanes[0] == ~lanes[2] && lanes[1] == ~lanes[3];
}

Result<PhaseTimes> all_reduce_by_hand(Codec& codec, Reducer& reducer, void* gradient) {
  PhaseTimes times;
  Round round;
  double start = thread_cpu_us();
  ADDEND_TRY(codec.begin(gradient));
  while (true) {
    auto more = codec.next_round(round);
    if (!more) return more.error();
    if (!*more) break;
    times.encode_us += thread_cpu_us() - start;
    const double reduce_start = now_us();
    ADDEND_TRY(reducer.reduce(round, deadline()));
    times.reduce_us += now_us() - reduce_start;
    start = thread_cpu_us();
  }
  // The call that found no further round worked on the last sum: that is decoding.
  ADDEND_TRY(codec.finish(gradient));
  times.decode_us = thread_cpu_us() - start;
  return times;
}

Result<std::unique_ptr<Worker>> Worker::create(Reducer& reducer, const CodecSpec& spec,
                                               std::span<const Layout> layouts, uint32_t threads) {
  std::unique_ptr<Worker> worker(new Worker);
  for (Layout layout : layouts) {
    layout.worker = reducer.worker();
    auto codec = create_codec(spec, layout);
    if (!codec) return codec.error();
    worker->codecs_.push_back(*std::move(codec));
  }
  // A dense all-reduce of one value is a barrier that fails, rather than hangs, when a worker is
  // gone.
  Layout one;
  one.count = 1;
  one.world = reducer.world();
  one.worker = reducer.worker();
  one.bucket = layouts.size() + 1;
  auto barrier = create_codec({"dense", {}}, one);
  if (!barrier) return barrier.error();
  worker->barrier_codec_ = *std::move(barrier);
  auto pipeline = create_pipeline(reducer, {.depth = 4, .deadline = kPatience, .threads = threads});
  if (!pipeline) return pipeline.error();
  worker->pipeline_ = *std::move(pipeline);
  return worker;
}

Status Worker::barrier() {
  auto ticket = pipeline_->submit(*barrier_codec_, &barrier_value_);
  if (!ticket) return ticket.error();
  return pipeline_->wait(*ticket);
}

Status Worker::all_reduce(std::span<void* const> gradients) {
  std::vector<Ticket> tickets;
  Status first_error;
  for (std::size_t i = 0; i < codecs_.size(); ++i) {
    Submission one;
    one.parts.push_back({codecs_[i].get(), gradients[i]});
    one.in_place = true;
    auto ticket = pipeline_->submit(std::move(one));
    if (!ticket) {
      first_error = ticket.error();
      break;
    }
    tickets.push_back(*ticket);
  }
  // Every ticket is waited for, also after an error: the gradients must not be touched while in
  // flight.
  for (Ticket ticket : tickets) {
    Status status = pipeline_->wait(ticket);
    if (!status && first_error) first_error = std::move(status);
  }
  return first_error;
}

}  // namespace addend::cli
