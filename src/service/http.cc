// SPDX-License-Identifier: Apache-2.0
#include "service/http.h"

#include <thread>

#include <httplib.h>

namespace addend::service {
namespace {

class HttpServer final : public Http {
 public:
  explicit HttpServer(Pages pages) : pages_(std::move(pages)) {
    // A page every second for a few readers: two threads do, and nobody may send us a body.
    server_.new_task_queue = [] { return new httplib::ThreadPool(2); };
    server_.set_payload_max_length(0);
    server_.set_read_timeout(2);
    server_.set_keep_alive_timeout(2);
    server_.set_default_headers({{"Cache-Control", "no-store"},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"Content-Security-Policy",
                                  "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                  "'unsafe-inline'; connect-src 'self'"}});
    serve("/", "text/html; charset=utf-8", pages_.page);
    serve("/status.json", "application/json", pages_.json);
    serve("/metrics", "text/plain; version=0.0.4", pages_.metrics);
  }
  ~HttpServer() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status listen(const std::string& address, uint16_t port) {
    const int bound = port == 0 ? server_.bind_to_any_port(address.c_str())
                      : server_.bind_to_port(address.c_str(), port) ? int{port}
                                                                    : -1;
    if (bound <= 0) {
      return make_error(Errc::kIo,
                        "cannot listen for HTTP at " + address + ":" + std::to_string(port));
    }
    port_ = static_cast<uint16_t>(bound);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // Before it runs it cannot be stopped.
    while (!server_.is_running())
      std::this_thread::yield();
    return {};
  }
  uint16_t port() const override { return port_; }

 private:
  void serve(const char* path, const char* type, const std::function<std::string()>& body) {
    server_.Get(path, [type, &body](const httplib::Request&, httplib::Response& response) {
      response.set_content(body(), type);
    });
  }

  Pages pages_;
  httplib::Server server_;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Http>> Http::start(const std::string& address, uint16_t port, Pages pages) {
  auto server = std::make_unique<HttpServer>(std::move(pages));
  ADDEND_TRY(server->listen(address, port));
  return std::unique_ptr<Http>(std::move(server));
}

}  // namespace addend::service
