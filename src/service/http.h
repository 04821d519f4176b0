// SPDX-License-Identifier: Apache-2.0
// GET /, /status.json, /metrics, /healthz and /readyz: a thread, few readers at a time, little time
// for each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "addend/result.h"
#include "net/descriptor.h"
#include "service/share.h"

namespace addend::service {

struct Pages {
  std::function<std::string()> page, json, metrics;
  /// Why a supervisor should restart the server, or send nobody to it; "": it should not.
  std::function<std::string()> unhealthy, unready;
};

/// The whole answer to a request's head, which may be any bytes.
std::string answer_to(std::string_view request, const Pages& pages);

class Http {
 public:
  static Result<std::unique_ptr<Http>> start(const std::string& address, uint16_t port,
                                             Pages pages);
  ~Http();
  uint16_t port() const { return port_; }

 private:
  struct Reader {
    net::Descriptor socket;
    Clock::time_point until;
    std::string in{}, out{};
    std::size_t sent = 0;
    bool answered = false;
  };

  explicit Http(Pages pages) : pages_(std::move(pages)) {}
  void run();
  void accept_some(Clock::time_point now);
  bool drive(Reader& reader);

  Pages pages_;
  net::Descriptor listener_, wake_;
  uint16_t port_ = 0;
  std::list<Reader> readers_;  // oldest first
  Share share_;                // of a core, for all pages
  Meter meter_;                // of thread_
  Clock::time_point accept_at_{};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace addend::service
