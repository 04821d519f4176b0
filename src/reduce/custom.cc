// SPDX-License-Identifier: Apache-2.0
// A reducer made of the caller's function. Planes of a device are the function's in a stream of the
// reducer's own:
//
//   codec's stream --> the function's: what it enqueues --> the host sees it end --> codec's stream
//
// The codec's stream does not wait for a round under way, so other gradients are encoded meanwhile,
// and a sum that does not come is found by the deadline.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "addend/reduce.h"
#include "cuda/memory.h"
#include "reduce/bus.h"
#include "reduce/host_memory.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

// A sum within a host takes tens of microseconds: so long nobody sleeps.
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr auto kNap = std::chrono::microseconds(20);

class CustomReducer final : public Reducer {
 public:
  CustomReducer(const CustomOptions& options, ReduceFunction function)
      : options_(options), function_(std::move(function)) {}

  uint32_t world() const override { return options_.world; }
  uint32_t worker() const override { return options_.worker; }
  // Whoever waits for a sum that does not come ends it by means of the engine's own, and must come
  // to that: so nothing waits here, nor does abandon. A device's planes are released behind it.
  void interrupt() override { interrupted_ = true; }

  Status reduce(Round& round, Deadline deadline) override {
    ADDEND_TRY(check_usable());
    if (options_.takes_devices && round.execution.device != Execution::Device::kCpu)
      return noted(reduce_there(round, deadline));
    ADDEND_TRY(check_host_memory(round));
    return noted(function_(round, deadline));
  }

 private:
  Status reduce_there(Round& round, Deadline deadline) {
    void* const codecs = round.execution.stream;
    ADDEND_TRY(Bus::reach(codecs, bus_));
    const cuda::OnDevice here(bus_->device());
    ADDEND_TRY(bus_->order(codecs, bus_->out()));
    round.execution.stream = bus_->out();
    const Status status = function_(round, deadline);
    round.execution.stream = codecs;
    ADDEND_TRY(status);
    ADDEND_TRY(wait_for_stream(deadline));
    return bus_->order(bus_->out(), codecs);
  }

  Status wait_for_stream(Deadline deadline) {
    const Result<void*> event = bus_->event();
    ADDEND_TRY(event);
    const Status status = wait_for(*event, deadline);
    bus_->give(*event);
    return status;
  }

  Status wait_for(void* event, Deadline deadline) {
    const cuda::Device& device = bus_->device();
    ADDEND_TRY(device.check(device.runtime->record(event, bus_->out()), "recording an event"));
    const auto begin = Clock::now();
    while (true) {
      const int code = device.runtime->query_event(event);
      // Kernels that were cut off by the engine's means end, too, and leave anything.
      if (interrupted_) return make_error(Errc::kUnavailable, "interrupted");
      if (code != cuda::RuntimeTable::kNotReady) return device.check(code, "adding planes");
      const auto now = Clock::now();
      if (now >= deadline)
        return make_error(Errc::kTimeout, "the device did not add up planes in time");
      if (now - begin > kSpin) std::this_thread::sleep_for(kNap);
    }
  }

  const CustomOptions options_;
  const ReduceFunction function_;
  std::unique_ptr<Bus> bus_;  // opened when a device's planes come
  std::atomic<bool> interrupted_ = false;
};

}  // namespace

Result<std::unique_ptr<Reducer>> create_custom_reducer(const CustomOptions& options,
                                                       ReduceFunction function) {
  if (!function) return make_error(Errc::kInvalidArgument, "a reduce function is needed");
  if (options.world == 0 || options.worker >= options.world)
    return make_error(Errc::kInvalidArgument, "worker is not below world");
  return std::unique_ptr<Reducer>(std::make_unique<CustomReducer>(options, std::move(function)));
}

}  // namespace addend
