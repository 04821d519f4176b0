// SPDX-License-Identifier: Apache-2.0
// The server's log: one line an event on stderr, written by a thread of its own. Whoever logs never
// waits: lines that nobody takes, and those of an event that comes too often, are left out and
// counted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "addend/service.h"
#include "apps/addend/serve_config.h"

namespace addend::cli {

/// Any thread may call.
class Log {
 public:
  explicit Log(const ServeConfig& config);
  /// Writes what is left, for a second at most.
  ~Log();

  /// Goes with this object.
  LogSink sink();
  /// One of ServeConfig::log_level.
  void set_level(const std::string& level);

 private:
  using Clock = std::chrono::steady_clock;
  struct Recent {
    Clock::time_point since{};
    int lines = 0;
  };

  void add(LogLevel level, std::string_view event, std::span<const LogField> fields);
  bool allowed(std::string_view event);
  void run();
  bool write(std::string_view line);

  std::string (*format_)(LogLevel, std::string_view, std::span<const LogField>);
  std::mutex mutex_;
  std::condition_variable changed_;
  LogLevel least_;  // guarded by mutex_, as is all below
  std::deque<std::string> lines_{};
  std::map<std::string, Recent> recent_{};  // by event: they are few, and do not change
  uint64_t left_out_ = 0;
  bool stop_ = false;
  Clock::time_point last_words_{};
  std::thread thread_;
};

}  // namespace addend::cli
