// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/log.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <unistd.h>

namespace addend::cli {
namespace {

constexpr std::size_t kMaxLines = 1024;
constexpr int kLinesASecond = 20;  // of one event
// What a pipe that is ready takes without waiting (POSIX: at least 512).
constexpr std::size_t kPiece = 512;
constexpr std::chrono::seconds kLastWords{1};
constexpr std::string_view kLevels[] = {"debug", "info", "warning", "error"};

std::string as_text(LogLevel level, std::string_view event, std::span<const LogField> fields) {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  std::string line = fmt::format(
      "{:%FT%T}.{:03}Z {} {}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
      now.time_since_epoch().count() % 1000, kLevels[static_cast<std::size_t>(level)], event);
  for (const LogField& field : fields)
    line += fmt::format(" {}={}", field.name, field.value);
  // A peer's words must not look like lines of ours.
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return line;
}

std::string as_json(LogLevel level, std::string_view event, std::span<const LogField> fields) {
  nlohmann::ordered_json line = {
      {"time",
       std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()},
      {"level", kLevels[static_cast<std::size_t>(level)]},
      {"event", event}};
  for (const LogField& field : fields)
    line[std::string(field.name)] = field.value;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

LogLevel level_of(const std::string& name) {
  return static_cast<LogLevel>(std::find(std::begin(kLevels), std::end(kLevels), name) -
                               std::begin(kLevels));
}

}  // namespace

Log::Log(const ServeConfig& config)
    : format_(config.json_log ? as_json : as_text),
      least_(level_of(config.log_level)),
      thread_(&Log::run, this) {}

Log::~Log() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    last_words_ = Clock::now() + kLastWords;
  }
  changed_.notify_one();
  thread_.join();
}

LogSink Log::sink() {
  return [this](LogLevel level, std::string_view event, std::span<const LogField> fields) {
    add(level, event, fields);
  };
}

void Log::set_level(const std::string& level) {
  const std::lock_guard lock(mutex_);
  least_ = level_of(level);
}

void Log::add(LogLevel level, std::string_view event, std::span<const LogField> fields) {
  const std::lock_guard lock(mutex_);
  if (level < least_) return;
  if (lines_.size() >= kMaxLines || !allowed(event)) {
    ++left_out_;
    return;
  }
  lines_.push_back(format_(level, event, fields) + "\n");
  changed_.notify_one();
}

bool Log::allowed(std::string_view event) {
  Recent& recent = recent_[std::string(event)];
  const auto now = Clock::now();
  if (now - recent.since > std::chrono::seconds(1)) recent = {now, 0};
  return ++recent.lines <= kLinesASecond;
}

void Log::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !lines_.empty(); });
    if (lines_.empty() && left_out_ == 0) return;
    std::string line;
    if (!lines_.empty()) {
      line = std::move(lines_.front());
      lines_.pop_front();
    }
    // Behind what was said before.
    if (lines_.empty() && left_out_ > 0) {
      const LogField count{"count", std::to_string(std::exchange(left_out_, 0))};
      line += format_(LogLevel::kWarning, "log lines left out", {&count, 1}) + "\n";
    }
    lock.unlock();
    const bool written = write(line);
    lock.lock();
    if (!written) ++left_out_;
    if (stop_ && (!written || (lines_.empty() && left_out_ == 0))) return;
  }
}

// False if it cannot be written, or not in time once the server ends.
bool Log::write(std::string_view line) {
  while (!line.empty()) {
    pollfd ready{STDERR_FILENO, POLLOUT, 0};
    if (poll(&ready, 1, 100) > 0 && (ready.revents & POLLOUT) != 0) {
      const ssize_t bytes = ::write(STDERR_FILENO, line.data(), std::min(line.size(), kPiece));
      if (bytes < 0 && errno != EINTR && errno != EAGAIN) return false;
      line.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
      continue;
    }
    if ((ready.revents & (POLLERR | POLLNVAL)) != 0) return false;
    const std::lock_guard lock(mutex_);
    if (stop_ && Clock::now() >= last_words_) return false;
  }
  return true;
}

}  // namespace addend::cli
