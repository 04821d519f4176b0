// SPDX-License-Identifier: Apache-2.0
// A second process that handles files for a server which has given up opening any: it was forked
// before the server had sockets, knows only the requests it was made with, and goes when the server
// does.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "addend/result.h"

namespace addend::cli {

class FileProcess {
 public:
  /// Does what a request asks and returns the answer. Runs in that process.
  using Work = std::function<Result<std::string>(const std::string& request)>;

  /// Forks. REQUIRES: this process has one thread.
  static Result<std::unique_ptr<FileProcess>> start(const Work& work);
  ~FileProcess();
  FileProcess(const FileProcess&) = delete;
  FileProcess& operator=(const FileProcess&) = delete;

  /// Any thread; requests are done one after the other.
  Result<std::string> ask(const std::string& request);

 private:
  explicit FileProcess(int socket) : socket_(socket) {}
  int socket_;
  std::mutex mutex_;
};

}  // namespace addend::cli
