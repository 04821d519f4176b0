// SPDX-License-Identifier: Apache-2.0
// Streams beside a codec's: copies between a device and the host, in both directions at once, and
// whatever else reducers have to do there.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addend/result.h"
#include "cuda/memory.h"

namespace addend {

/// Streams and events of one device, for copies in both directions.
class Bus {
 public:
  static Result<std::unique_ptr<Bus>> open(const cuda::Device& device) {
    std::unique_ptr<Bus> bus(new Bus(device));
    const cuda::OnDevice here(device);
    for (void** stream : {&bus->out_, &bus->back_, &bus->told_})
      ADDEND_TRY(device.check(device.runtime->create_stream(stream), "making a stream"));
    return bus;
  }
  /// Opens `bus` for the device that a stream is of, or finds that it has that one.
  static Status reach(void* stream, std::unique_ptr<Bus>& bus) {
    const auto device = cuda::Device::of(stream);
    ADDEND_TRY(device);
    if (!bus) {
      auto opened = open(*device);
      ADDEND_TRY(opened);
      bus = std::move(*opened);
    }
    if (bus->device().number == device->number) return {};
    return make_error(Errc::kUnsupported, "a reducer takes planes of one device: it has those of " +
                                              std::to_string(bus->device().number) +
                                              " and was given some of " +
                                              std::to_string(device->number));
  }
  ~Bus() {
    drain();
    for (void* stream : {out_, back_, told_})
      if (stream != nullptr) device_.runtime->destroy_stream(stream);
    for (void* event : spare_events_)
      device_.runtime->destroy_event(event);
  }
  Bus(const Bus&) = delete;
  Bus& operator=(const Bus&) = delete;

  const cuda::Device& device() const { return device_; }
  void* out() const { return out_; }
  void* back() const { return back_; }

  /// Until no copy is under way.
  void drain() {
    for (void* stream : {out_, back_, told_})
      if (stream != nullptr) device_.runtime->synchronize(stream);
  }

  Result<void*> event() {
    if (spare_events_.empty()) {
      void* made = nullptr;
      ADDEND_TRY(device_.check(device_.runtime->create_event(&made), "making an event"));
      return made;
    }
    void* event = spare_events_.back();
    spare_events_.pop_back();
    return event;
  }
  void give(void* event) { spare_events_.push_back(event); }

  /// `second` waits until `first` has done what it has been given so far.
  Status order(void* first, void* second) {
    const Result<void*> between = event();
    ADDEND_TRY(between);
    ADDEND_TRY(device_.check(device_.runtime->record(*between, first), "recording an event"));
    ADDEND_TRY(device_.check(device_.runtime->wait_event(second, *between), "waiting in a stream"));
    give(*between);  // a stream waits for what was recorded when it was asked to
    return {};
  }

  /// Calls the host when the copies out have come to this event. By a stream of its own: the copies
  /// do not wait for the call.
  Status tell(void* event, void (*call)(void*), void* argument) {
    ADDEND_TRY(device_.check(device_.runtime->wait_event(told_, event), "waiting in a stream"));
    return device_.check(device_.runtime->call_host(told_, call, argument), "calling the host");
  }

 private:
  explicit Bus(const cuda::Device& device) : device_(device) {}

  const cuda::Device device_;
  void *out_ = nullptr, *back_ = nullptr, *told_ = nullptr;
  std::vector<void*> spare_events_;
};

}  // namespace addend
