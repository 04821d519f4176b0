// SPDX-License-Identifier: Apache-2.0
// A client's connection to an aggregation server's control plane: TCP, TLS, messages, deadlines.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "addend/access.h"
#include "addend/result.h"
#include "auth/tls.h"
#include "net/control_message.h"
#include "net/descriptor.h"
#include "net/fork_guard.h"

namespace addend::auth {

using Deadline = std::chrono::steady_clock::time_point;

/// One thread at a time.
class ControlClient {
 public:
  static Result<std::unique_ptr<ControlClient>> connect(const ServiceAccess& access,
                                                        Deadline deadline);

  /// The same, but a server that is not there yet, or had no room for us, is tried again; until
  /// `stop`, if any, becomes true.
  static Result<std::unique_ptr<ControlClient>> connect_when_up(
      const ServiceAccess& access, Deadline deadline, const std::atomic<bool>* stop = nullptr);

  template <typename T>
  Status send(addend_control_type type, const T& body, std::span<const uint32_t> numbers,
              Deadline deadline) {
    net::append_control(out_, type, body, numbers);
    return flush(deadline);
  }
  Status send(addend_control_type type, Deadline deadline) {
    net::append_control(out_, type);
    return flush(deadline);
  }

  /// The next message, which belongs to this object until the next call. kTimeout if none came in
  /// time; a server's refusal becomes the error it names.
  Result<net::ControlMessage> receive(Deadline deadline);

  /// Whether the connection is gone, whoever ended it.
  bool is_lost() const { return lost_; }
  /// To wait for messages together with other sockets; after that, receive with a deadline of now.
  int fd() const { return socket_.get(); }

 private:
  static Result<std::unique_ptr<ControlClient>> dial(const ServiceAccess& access, Deadline deadline,
                                                     bool& nobody_there);
  ControlClient(TlsContext context, net::Descriptor socket, TlsStream stream);
  Status flush(Deadline deadline);
  Status wait(Progress progress, Deadline deadline);

  TlsContext context_;
  net::Descriptor socket_;
  net::ForkGuard guard_;
  TlsStream stream_;
  std::vector<uint8_t> out_, in_;
  bool lost_ = false;
  std::size_t taken_ = 0;  // bytes of in_ that the last message took
};

}  // namespace addend::auth
