// SPDX-License-Identifier: Apache-2.0
// A data plane on a thread and a UDP socket of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/udp_socket.h"
#include "service/data_plane.h"

namespace addend::service {

/// Any thread may call. Work that is posted runs in order, on the thread that owns the plane.
class DataThread {
 public:
  /// Asked of the kernel for datagrams that wait.
  static constexpr uint32_t kBufferBytes = 8u << 20;

  /// The system's tools show it as "addend data NUMBER".
  static Result<std::unique_ptr<DataThread>> start(const net::Address& address, uint32_t number,
                                                   DataPlane::OnEnded on_ended);
  /// Stops at once; what was posted before has run.
  ~DataThread();

  uint16_t port() const { return socket_.port(); }
  uint32_t buffer_bytes() const { return socket_.receive_buffer_bytes(); }
  void post(std::function<void(DataPlane&)> work);
  /// As of the last tenth of a second.
  DataPlaneStatus status() const;
  /// When it last was at work; it is at least ten times a second.
  std::chrono::steady_clock::time_point at_work() const { return at_work_; }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  uint64_t too_long() const { return too_long_.load(std::memory_order_relaxed); }

 private:
  DataThread(net::UdpSocket socket, net::Descriptor wake, DataPlane::OnEnded on_ended);
  void run();
  void run_posted(DataPlane& plane);
  void receive(DataPlane& plane, net::Inbox& inbox, uint64_t now_ns);
  static void receive_up(DataPlane& plane, net::Inbox& inbox, const DataPlane::Uplink& uplink);

  net::UdpSocket socket_;
  net::Descriptor wake_;
  DataPlane::OnEnded on_ended_;
  std::atomic<bool> stop_{false};
  std::atomic<std::chrono::steady_clock::time_point> at_work_{std::chrono::steady_clock::now()};
  std::atomic<uint64_t> dropped_{0}, too_long_{0};
  mutable std::mutex mutex_;
  std::vector<std::function<void(DataPlane&)>> posted_;  // guarded by mutex_
  DataPlaneStatus status_;                               // guarded by mutex_
  std::thread thread_;
};

}  // namespace addend::service
