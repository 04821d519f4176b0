// SPDX-License-Identifier: Apache-2.0
// The parts of the server, put together: data threads, control plane, pages. What their threads
// share are copies and posted work: a data thread never waits for another one.
//
//   workers --UDP--> data threads <-- epochs, tables, ends: posted -- control thread
//                      |     |                                        ^   |     ^
//                      |     '---- epochs that ended: posted ---------'   |     '-- TLS: operators,
//                      |                                                  |         workers
//                      '-- status, every 0.1 s --> pages' thread <- view -'
//                                                        ^
//                                                        '-- HTTP: browsers, Prometheus
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <set>

#include "addend/service.h"
#include "dataplane/xdp/driver.h"
#include "service/control.h"
#include "service/data_thread.h"
#include "service/http.h"
#include "service/status.h"
#include "service/uplinks.h"

namespace addend::service {
namespace {

using Clock = std::chrono::steady_clock;

class RunningThreads final : public DataThreads {
 public:
  Status start_all(const net::Address& address, uint32_t count, const DataPlane::OnEnded& ended) {
    for (uint32_t i = 0; i < count; ++i) {
      net::Address own = address;
      if (address.port() != 0) own.set_port(static_cast<uint16_t>(address.port() + i));
      auto thread = DataThread::start(own, i, ended);
      if (!thread) return thread.error();
      threads_.push_back(*std::move(thread));
    }
    return {};
  }

  /// REQUIRES: the threads are there.
  Status start_driver(const std::string& interface) {
    auto driver = dataplane::Driver::load(interface);
    if (!driver) return driver.error();
    ADDEND_TRY((*driver)->attach());
    driver_ = *std::move(driver);
    return {};
  }

  uint32_t threads() const override { return static_cast<uint32_t>(threads_.size()); }
  uint16_t port(uint32_t thread) const override { return threads_[thread]->port(); }
  uint32_t buffer_bytes() const { return threads_[0]->buffer_bytes(); }
  void start(std::shared_ptr<const JobEpoch> job, std::vector<aggregate::Slots> parts) override {
    auto driver_parts = driver_parts_of(*job, parts);
    driver_parts.resize(parts.size());
    for (std::size_t t = 0; t < parts.size(); ++t) {
      // std::function wants copies; the part moves on when the work runs, once.
      auto part = std::make_shared<aggregate::Slots>(std::move(parts[t]));
      auto driver =
          std::make_shared<std::unique_ptr<dataplane::DriverPart>>(std::move(driver_parts[t]));
      threads_[t]->post(
          [=](DataPlane& plane) { plane.add(job, std::move(*part), std::move(*driver)); });
    }
  }
  void set_table(uint32_t epoch, uint32_t number, const aggregate::Table& table) override {
    // Frames that name the table come only after its number is known, so every thread must have it
    // before the answer leaves.
    std::vector<std::future<void>> done;
    for (const auto& thread : threads_) {
      auto promise = std::make_shared<std::promise<void>>();
      done.push_back(promise->get_future());
      thread->post([=](DataPlane& plane) {
        plane.set_table(epoch, number, table);
        promise->set_value();
      });
    }
    for (const auto& one : done)
      one.wait();
  }
  void leave(uint32_t epoch, uint32_t worker) override {
    for (const auto& thread : threads_)
      thread->post([=](DataPlane& plane) { plane.leave(epoch, worker); });
  }
  void end(uint32_t epoch, addend_notice why, uint32_t worker) override {
    for (const auto& thread : threads_)
      thread->post([=](DataPlane& plane) { plane.end(epoch, why, worker); });
  }
  void remove(uint32_t epoch) override {
    for (const auto& thread : threads_)
      thread->post([=](DataPlane& plane) { plane.remove(epoch); });
  }
  void expect(const std::shared_ptr<Probe>& probe) override {
    for (uint32_t t = 0; t < threads(); ++t)
      threads_[t]->post([=](DataPlane& plane) { plane.expect(probe, t); });
  }

  /// The number of one that has not been at work since then.
  std::optional<uint32_t> idle_since(Clock::time_point then) const {
    for (uint32_t t = 0; t < threads(); ++t) {
      if (threads_[t]->at_work() < then) return t;
    }
    return std::nullopt;
  }

  void add_to(ServerStatus& status) const {
    for (const auto& thread : threads_) {
      add(status, thread->status());
      status.dropped += thread->dropped();
      status.too_long += thread->too_long();
    }
  }
  void stop() { threads_.clear(); }

 private:
  // None without a driver, or if it cannot do the job.
  std::vector<std::unique_ptr<dataplane::DriverPart>> driver_parts_of(
      const JobEpoch& job, const std::vector<aggregate::Slots>& parts) const {
    if (driver_ == nullptr) return {};
    dataplane::DriverJobOptions options{job.slots,   job.worker_keys,   &job.result_key,
                                        job.workers, job.packets_per_s, {}};
    for (std::size_t t = 0; t < parts.size(); ++t)
      options.parts.push_back(
          {parts[t].options().first_slot, parts[t].options().slots, threads_[t]->port()});
    return driver_->jobs().add(options);
  }

  std::unique_ptr<dataplane::Driver> driver_;  // outlives the threads, which have parts of its jobs
  std::vector<std::unique_ptr<DataThread>> threads_;
};

// "a.b" with job "c" and "a" with job "b.c" would be one job at the next server.
Status check_tenants_of_leaf(const std::vector<TenantOptions>& tenants) {
  for (const TenantOptions& tenant : tenants) {
    if (tenant.name.find('.') == std::string::npos) continue;
    return make_error(Errc::kInvalidArgument,
                      "tenant " + tenant.name +
                          " has a dot in its name, which at a leaf of a tree parts the tenant's "
                          "name from the job's");
  }
  return {};
}

Status check_upstream(const ServerOptions& options) {
  const UpstreamOptions& upstream = options.upstream;
  if (upstream.address.empty()) return {};
  if (!options.xdp_interface.empty()) {
    return make_error(
        Errc::kUnsupported,
        "a leaf of a tree folds in its data thread: --upstream does not go with --xdp");
  }
  if (options.threads != 1) {
    return make_error(Errc::kUnsupported,
                      "a leaf of a tree has one data thread: --upstream does not go with several");
  }
  if (upstream.leaves == 0 || upstream.leaves > ADDEND_MAX_JOB_WORKERS ||
      upstream.leaf >= upstream.leaves) {
    return make_error(Errc::kInvalidArgument,
                      "a tree has 1 to 64 leaves, and they are numbered from 0");
  }
  if (!upstream.key.is_set() || upstream.identity.empty()) {
    return make_error(Errc::kInvalidArgument, "a leaf needs an identity and a key at " +
                                                  upstream.address + ", the next server");
  }
  return check_tenants_of_leaf(options.tenants);
}

Status check_switch(const ServerOptions& options) {
  const SwitchOptions& in_switch = options.in_switch;
  if (!in_switch.publish) return {};
  if (!options.xdp_interface.empty() || !options.upstream.address.empty()) {
    return make_error(Errc::kUnsupported,
                      "jobs are folded in one place: --switch goes neither with --xdp nor with "
                      "--upstream");
  }
  if (in_switch.payload_bytes == 0 || in_switch.payload_bytes % 8 != 0 ||
      in_switch.payload_bytes > ADDEND_FRAME_PAYLOAD_BYTES) {
    return make_error(Errc::kInvalidArgument,
                      "a switch's payload is a multiple of 8 up to 1408 bytes");
  }
  if (in_switch.slots == 0 || in_switch.slots > 32768) {
    return make_error(Errc::kInvalidArgument, "a switch has 1 to 32768 slots");
  }
  return {};
}

Status check(const ServerOptions& options) {
  if (options.threads == 0 || options.threads > ADDEND_CONTROL_MAX_THREADS) {
    return make_error(Errc::kInvalidArgument, "a server has 1 to 64 data threads");
  }
  if (options.data_port + options.threads > 65536u) {
    return make_error(Errc::kInvalidArgument,
                      "the data threads would take ports up to " +
                          std::to_string(options.data_port + options.threads - 1));
  }
  ADDEND_TRY(check_upstream(options));
  ADDEND_TRY(check_switch(options));
  if (options.max_connections == 0) {
    return make_error(Errc::kInvalidArgument, "a server without connections has nothing to do");
  }
  if (options.tenants.empty()) {
    return make_error(Errc::kInvalidArgument, "a server without tenants has nothing to do");
  }
  std::set<std::string> names;
  for (const TenantOptions& tenant : options.tenants) {
    const bool good = !tenant.name.empty() &&
                      std::all_of(tenant.name.begin(), tenant.name.end(), [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                      });
    if (!good || tenant.name.size() >= ADDEND_CONTROL_NAME_BYTES) {
      return make_error(Errc::kInvalidArgument, "'" + tenant.name + "' is no name for a tenant");
    }
    if (!names.insert(tenant.name).second) {
      return make_error(Errc::kInvalidArgument, "two tenants are named " + tenant.name);
    }
    if (!tenant.key.is_set() && options.certificates.authority.empty()) {
      return make_error(Errc::kInvalidArgument, "tenant " + tenant.name + " has no key");
    }
  }
  return {};
}

class RunningServer final : public Server {
 public:
  ~RunningServer() override {
    http_.reset();
    // Each calls the other: the data threads lose their way to the control plane, then it goes, and
    // then nobody posts to them any more. So do the connections to the next server.
    {
      const std::lock_guard lock(ended_mutex_);
      ended_to_ = nullptr;
    }
    control_.reset();
    uplinks_.reset();
    threads_.stop();
  }

  Status start(const ServerOptions& options, const LogSink& log) {
    auto boot = auth::random_number();
    if (!boot) return boot.error();
    boot_ = *boot;
    log_ = log;
    auto address = net::resolve(options.address, options.data_port);
    if (!address) return address.error();
    ADDEND_TRY(threads_.start_all(*address, options.threads,
                                  [this](const addend_frame_header& n) { on_ended(n); }));
    if (!options.xdp_interface.empty()) ADDEND_TRY(threads_.start_driver(options.xdp_interface));
    ADDEND_TRY(start_control(options, *address));
    if (options.http) ADDEND_TRY(start_http(options));
    const LogField fields[] = {
        {"control", std::to_string(control_port())},  {"data", std::to_string(threads_.port(0))},
        {"threads", std::to_string(options.threads)}, {"xdp", options.xdp_interface},
        {"http", std::to_string(http_port())},        {"boot", std::to_string(boot_)}};
    log_(LogLevel::kInfo, "server started", fields);
    warn_of_small_buffers();
    return {};
  }

  uint16_t control_port() const override { return control_->port(); }
  uint16_t http_port() const override { return http_ ? http_->port() : uint16_t{0}; }
  std::string metrics() const override { return to_metrics(status()); }

  Status reload(const ServerOptions& options) override {
    ADDEND_TRY(check(options));
    if (uplinks_) ADDEND_TRY(check_tenants_of_leaf(options.tenants));
    ADDEND_TRY(control_->reload(control_options(options, {}), options.tenants));
    // From here on all is as it was asked for.
    ask<bool>([](Registry&) { return true; });
    return {};
  }

  void drain(std::chrono::milliseconds patience) override {
    log_(LogLevel::kInfo, "draining", {});
    draining_ = true;
    control_->post([](Registry& registry) { registry.close(); });
    const auto deadline = Clock::now() + patience;
    while (!ask<bool>([](Registry& registry) { return registry.empty(); })) {
      if (Clock::now() >= deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ask<bool>([](Registry& registry) {
      registry.end_all();
      return true;
    });
    log_(LogLevel::kInfo, "drained", {});
  }

 private:
  // Without privilege the kernel gives what its limit allows, and bursts beyond it are lost.
  void warn_of_small_buffers() const {
    if (threads_.buffer_bytes() >= DataThread::kBufferBytes) return;
    const std::string asked = std::to_string(DataThread::kBufferBytes);
    const LogField fields[] = {{"asked_bytes", asked},
                               {"got_bytes", std::to_string(threads_.buffer_bytes())},
                               {"remedy", "sysctl net.core.rmem_max=" + asked}};
    log_(LogLevel::kWarning, "receive buffers are small", fields);
  }

  // Runs on a data thread.
  void on_ended(const addend_frame_header& notice) {
    post([notice](Registry& registry) { registry.ended(notice); });
  }
  // From threads that the control thread may be waiting for.
  void post(std::function<void(Registry&)> work) {
    const std::lock_guard lock(ended_mutex_);
    if (ended_to_ != nullptr) ended_to_->post(std::move(work));
  }

  static ControlOptions control_options(const ServerOptions& options, const net::Address& address) {
    ControlOptions control{address, options.max_connections, std::nullopt};
    if (!options.certificates.authority.empty()) {
      control.certificates =
          auth::Certificates{options.certificates.authority, options.certificates.certificate,
                             options.certificates.key};
    }
    return control;
  }

  Status start_control(const ServerOptions& options, net::Address address) {
    address.set_port(options.control_port);
    if (!options.upstream.address.empty()) {
      // Where it is now: a running server may have no way to ask for names.
      const auto next = net::resolve(options.upstream.address);
      if (!next) return next.error();
      UpstreamOptions upstream = options.upstream;
      upstream.address = next->to_string();
      uplinks_ = std::make_unique<Uplinks>(
          upstream, [this](std::function<void(Registry&)> work) { post(std::move(work)); });
    }
    Status restored;
    auto started = Control::start(
        control_options(options, address),
        [&](MessageSink& sink) {
          auto registry =
              std::make_unique<Registry>(options.tenants, boot_, threads_, sink, log_,
                                         options.save_state, uplinks_.get(), options.in_switch);
          if (!options.state.empty()) restored = registry->restore(options.state);
          if (restored) restored = registry->publish();  // jobs of an earlier server are no more
          return registry;
        },
        [this](std::span<const JobView> views, std::span<addend_control_status> out) {
          fill(views, out);
        },
        log_);
    if (!started) return started.error();
    ADDEND_TRY(restored);
    control_ = *std::move(started);
    const std::lock_guard lock(ended_mutex_);
    ended_to_ = control_.get();
    return {};
  }

  Status start_http(const ServerOptions& options) {
    auto http = Http::start(
        options.http_address, options.http_port,
        {status_page, [this] { return to_json(status()); }, [this] { return to_metrics(status()); },
         [this] { return unhealthy(); }, [this] { return unready(); }});
    if (!http) return http.error();
    http_ = *std::move(http);
    return {};
  }

  // Threads look up at least once a second, whatever happens; a busy machine may take its time.
  std::string unhealthy() const {
    const auto then = Clock::now() - std::chrono::seconds(10);
    if (control_->view().at < then) return "the control thread has not been at work for 10 s";
    const auto thread = threads_.idle_since(then);
    if (!thread) return "";
    return "data thread " + std::to_string(*thread) + " has not been at work for 10 s";
  }
  std::string unready() const { return draining_ ? "draining" : unhealthy(); }

  template <typename T>
  T ask(const std::function<T(Registry&)>& question) const {
    auto answer = std::make_shared<std::promise<T>>();
    control_->post([=](Registry& registry) { answer->set_value(question(registry)); });
    return answer->get_future().get();
  }

  ServerStatus status() const {
    const ControlView view = control_->view();
    ServerStatus status = status_of(view.jobs);
    status.control = view.status;
    return status;
  }
  ServerStatus status_of(const std::vector<JobView>& views) const {
    ServerStatus status;
    status.boot = boot_;
    status.uptime_s = std::chrono::duration<double>(Clock::now() - started_).count();
    status.threads = threads_.threads();
    for (const JobView& view : views)
      status.jobs.push_back({view, {}, 0, {}});
    threads_.add_to(status);
    return status;
  }
  void fill(std::span<const JobView> views, std::span<addend_control_status> out) const {
    const ServerStatus status = status_of({views.begin(), views.end()});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const aggregate::Counters& counters = status.jobs[i].counters;
      out[i].waited_for = status.jobs[i].waited_for();
      out[i].turns = counters.complete + counters.partial;
      for (const uint64_t refused : counters.refused)
        out[i].refused += refused;
    }
  }

  uint32_t boot_ = 0;
  Clock::time_point started_ = Clock::now();
  LogSink log_;
  std::atomic<bool> draining_{false};
  RunningThreads threads_;
  std::unique_ptr<Uplinks> uplinks_;  // outlives the control plane, whose thread it belongs to
  std::unique_ptr<Control> control_;
  std::mutex ended_mutex_;
  Control* ended_to_ = nullptr;  // guarded by ended_mutex_
  std::unique_ptr<Http> http_;
};

}  // namespace
}  // namespace addend::service

namespace addend {

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options, LogSink log) {
  ADDEND_TRY(service::check(options));
  auto server = std::make_unique<service::RunningServer>();
  ADDEND_TRY(server->start(options, log));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace addend
