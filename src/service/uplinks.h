// SPDX-License-Identifier: Apache-2.0
// A leaf's connections to the next server: for each job a thread that joins it there and then waits
// for what it says.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "addend/service.h"
#include "net/descriptor.h"
#include "service/registry.h"

namespace addend::service_client {
class Session;
}

namespace addend::service {

/// The control thread's. Answers are posted from other threads.
class Uplinks final : public NextServer {
 public:
  using Post = std::function<void(std::function<void(Registry&)>)>;
  Uplinks(const UpstreamOptions& options, Post post);
  /// Leaves without a word: workers go on with the next server at this address.
  ~Uplinks() override;

  uint32_t leaf() const override { return options_.leaf; }
  uint32_t leaves() const override { return options_.leaves; }
  void join(uint32_t number, const std::string& name, const JobOptions& options,
            std::vector<uint32_t> positions) override;
  void leave(uint32_t number, bool done) override;

 private:
  struct Link {
    std::string name;
    std::atomic<bool> stop{false}, done{false}, over{false};
    net::Descriptor wake;
    std::thread thread;
  };
  void run(uint32_t number, Link& link, std::shared_ptr<Link> before, const JobOptions& options,
           const std::vector<uint32_t>& positions) const;
  void watch(uint32_t number, const Link& link, service_client::Session& session) const;
  static void end(Link& link, bool done);

  UpstreamOptions options_;
  Post post_;
  std::map<uint32_t, std::shared_ptr<Link>> links_;
  std::vector<std::shared_ptr<Link>> leaving_;  // their threads end by themselves
};

}  // namespace addend::service
