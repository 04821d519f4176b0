// SPDX-License-Identifier: Apache-2.0
#include "service/data_thread.h"

#include <chrono>

#include <poll.h>
#include <sys/eventfd.h>

#include "base/quiet_thread.h"

namespace addend::service {
namespace {

constexpr uint64_t kMillisecondNs = 1'000'000;
constexpr uint64_t kStatusEveryNs = 100 * kMillisecondNs;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

class OutboxSink final : public FrameSink {
 public:
  explicit OutboxSink(const net::UdpSocket& socket) : outbox_(socket) {}
  void send(const net::Address& to, std::span<const uint8_t> bytes, uint32_t segment) override {
    outbox_.add(to, bytes, segment);
  }
  void flush() override { outbox_.flush(); }
  const net::Outbox& outbox() const { return outbox_; }
  std::optional<net::Address> take_too_long() { return outbox_.take_too_long(); }

 private:
  net::Outbox outbox_;
};

}  // namespace

Result<std::unique_ptr<DataThread>> DataThread::start(const net::Address& address, uint32_t number,
                                                      DataPlane::OnEnded on_ended) {
  auto socket = net::UdpSocket::bind(address, kBufferBytes);
  if (!socket) return socket.error();
  net::Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return net::io_error("eventfd");
  std::unique_ptr<DataThread> thread(
      new DataThread(*std::move(socket), std::move(wake), std::move(on_ended)));
  const std::string name = "addend data " + std::to_string(number);
  thread->thread_ = quiet_thread(name.c_str(), [it = thread.get()] { it->run(); });
  return thread;
}

DataThread::DataThread(net::UdpSocket socket, net::Descriptor wake, DataPlane::OnEnded on_ended)
    : socket_(std::move(socket)), wake_(std::move(wake)), on_ended_(std::move(on_ended)) {}

DataThread::~DataThread() {
  stop_ = true;
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void DataThread::post(std::function<void(DataPlane&)> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  eventfd_write(wake_.get(), 1);
}

DataPlaneStatus DataThread::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void DataThread::run_posted(DataPlane& plane) {
  eventfd_t count;
  eventfd_read(wake_.get(), &count);
  std::vector<std::function<void(DataPlane&)>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (const auto& one : work)
    one(plane);
}

void DataThread::receive(DataPlane& plane, net::Inbox& inbox, uint64_t now) {
  for (const net::Inbox::Datagrams& from : inbox.receive(socket_))
    plane.receive(from.from, from.bytes, from.segment, now);
}

void DataThread::receive_up(DataPlane& plane, net::Inbox& inbox, const DataPlane::Uplink& uplink) {
  for (const net::Inbox::Datagrams& from : inbox.receive(*uplink.socket))
    plane.receive_up(uplink.epoch, from.bytes, from.segment);
}

void DataThread::run() {
  OutboxSink sink(socket_);
  DataPlane plane(sink, on_ended_);
  net::Inbox inbox;
  std::vector<DataPlane::Uplink> uplinks;
  std::vector<pollfd> ready;
  uint64_t next_expiry_ns = 0, next_status_ns = 0;
  while (!stop_) {
    ready.assign({{socket_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}});
    for (const DataPlane::Uplink& uplink : uplinks)
      ready.push_back({uplink.socket->fd(), POLLIN, 0});
    // Without patience there is nothing to expire, and the thread sleeps but for its status.
    poll(ready.data(), ready.size(), plane.watches_time() ? 1 : 100);
    // Before datagrams: a worker's first frames come right behind its welcome, which the control
    // thread sends when it has posted the epoch.
    if (ready[1].revents != 0) {
      run_posted(plane);
      next_status_ns = 0;
    }
    const uint64_t now = now_ns();
    if (ready[0].revents != 0) receive(plane, inbox, now);
    for (std::size_t i = 0; i < uplinks.size(); ++i) {
      if (ready[2 + i].revents != 0) receive_up(plane, inbox, uplinks[i]);
    }
    if (ready[1].revents != 0) uplinks = plane.uplinks();
    if (now >= next_expiry_ns) {
      plane.expire(now);
      next_expiry_ns = now + kMillisecondNs;
    }
    plane.flush();
    if (const auto worker = sink.take_too_long()) plane.end_path(*worker);
    if (now >= next_status_ns) {
      at_work_ = std::chrono::steady_clock::now();
      DataPlaneStatus status = plane.status(now);
      dropped_.store(sink.outbox().dropped(), std::memory_order_relaxed);
      too_long_.store(sink.outbox().too_long(), std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      status_ = std::move(status);
      next_status_ns = now + kStatusEveryNs;
    }
  }
}

}  // namespace addend::service
