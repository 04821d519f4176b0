// SPDX-License-Identifier: Apache-2.0
// GET /, /status.json and /metrics. The only user of cpp-httplib.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "addend/result.h"

namespace addend::service {

class Http {
 public:
  struct Pages {
    std::function<std::string()> page, json, metrics;
  };
  static Result<std::unique_ptr<Http>> start(const std::string& address, uint16_t port,
                                             Pages pages);
  virtual ~Http() = default;
  virtual uint16_t port() const = 0;
};

}  // namespace addend::service
