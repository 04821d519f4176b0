// SPDX-License-Identifier: Apache-2.0
// The whole server over loopback: operators, keys, pages, draining.
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "addend/service.h"
#include "auth/control_client.h"
#include "gtest/gtest.h"
#include "net/address.h"
#include "net/descriptor.h"
#include "tests/support/keys.h"

namespace addend {
namespace {

using testing_support::key_of;

/// Keeps one thread of this process from its work while this exists. Our threads take no signals,
/// so a child traces it.
class Stopped {
 public:
  explicit Stopped(const std::string& name) {
    const pid_t thread = thread_named(name);
    EXPECT_NE(thread, 0) << "no thread is named " << name;
    int said[2], until[2];
    EXPECT_EQ(pipe2(said, O_CLOEXEC) | pipe2(until, O_CLOEXEC), 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    child_ = fork();
    if (child_ == 0) {
      close(until[1]);
      hold(thread, said[1], until[0]);
    }
    close(said[1]);
    close(until[0]);
    until_ = net::Descriptor(until[1]);
    EXPECT_EQ(read(said[0], &problem_, sizeof(problem_)), ssize_t{sizeof(problem_)});
    close(said[0]);
  }
  ~Stopped() {
    until_ = net::Descriptor();
    waitpid(child_, nullptr, 0);
  }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

  /// Why it is not stopped; 0: it is.
  int problem() const { return problem_; }

 private:
  static pid_t thread_named(const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string found;
      std::getline(std::ifstream(task.path() / "comm"), found);
      if (found == name) return std::stoi(task.path().filename());
    }
    return 0;
  }
  [[noreturn]] static void hold(pid_t thread, int said, int until) {
    const bool stopped = ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 &&
                         ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 &&
                         waitpid(thread, nullptr, __WALL) == thread;
    const int problem = stopped ? 0 : errno;
    char byte = 0;
    if (write(said, &problem, sizeof(problem)) > 0) (void)!read(until, &byte, 1);
    ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    _exit(0);
  }

  pid_t child_ = 0;
  net::Descriptor until_;
  int problem_ = -1;
};

/// Status and text of a page.
std::pair<std::string, std::string> get(uint16_t port, const std::string& path) {
  const auto to = net::resolve("127.0.0.1", port);
  const net::Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to->raw), sizeof(to->raw)), 0);
  const std::string request = "GET " + path + " HTTP/1.1\r\n\r\n";
  EXPECT_GT(send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  std::string answer;
  std::array<char, 4096> bytes;
  for (ssize_t count; (count = recv(socket.get(), bytes.data(), bytes.size(), 0)) > 0;)
    answer.append(bytes.data(), static_cast<std::size_t>(count));
  const std::size_t head = answer.find("\r\n\r\n");
  if (head == std::string::npos) return {"", answer};
  return {answer.substr(9, 3), answer.substr(head + 4)};
}

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.address = "127.0.0.1";
    options.threads = 2;
    options.tenants.resize(2);
    options.tenants[0].name = "lab";
    options.tenants[0].key = key_of(1);
    options.tenants[1].name = "root";
    options.tenants[1].key = key_of(2);
    options.tenants[1].sees_all = true;
    auto server = Server::start(
        options, [this](LogLevel, std::string_view event, std::span<const LogField> fields) {
          const std::lock_guard lock(mutex_);
          for (const LogField& field : fields)
            log_ += std::string(field.name) + "=" + field.value + " ";
          log_ += std::string(event) + "\n";
        });
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  ServiceAccess access(const std::string& identity, const ServiceKey& key) const {
    return {"127.0.0.1:" + std::to_string(server_->control_port()), identity, key, {}};
  }
  static JobOptions job_named(const std::string& name) {
    JobOptions job;
    job.name = name;
    job.world = 4;
    return job;
  }

  std::mutex mutex_;
  std::string log_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, JobsAreCreatedListedAndDrained) {
  const ServiceAccess lab = access("lab", key_of(1));
  ASSERT_TRUE(create_job(lab, job_named("a")));
  ASSERT_TRUE(create_job(lab, job_named("b")));
  const Status again = create_job(lab, job_named("a"));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Errc::kInvalidArgument);
  const auto jobs = list_jobs(lab);
  ASSERT_TRUE(jobs) << jobs.error().message;
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ((*jobs)[0].name, "a");
  EXPECT_EQ((*jobs)[0].slots, 512u);
  EXPECT_EQ(list_jobs(access("root", key_of(2)))->size(), 2u);
  ASSERT_TRUE(drain_job(lab, "a"));
  EXPECT_EQ(list_jobs(lab)->size(), 1u);
  EXPECT_FALSE(drain_job(lab, "a"));
  EXPECT_FALSE(drain_job(access("root", key_of(2)), "root/b"));
  EXPECT_TRUE(drain_job(access("root", key_of(2)), "lab/b"));
  EXPECT_TRUE(list_jobs(lab)->empty());
  const std::string too_long(64, 'x');
  EXPECT_FALSE(create_job(lab, job_named(too_long)));
  EXPECT_FALSE(drain_job(lab, too_long));
}

TEST_F(ServerTest, AWrongKeyIsRefusedAndLogged) {
  const Status status = create_job(access("lab", key_of(9)), job_named("a"));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kUnavailable);
  const Status unknown = create_job(access("nobo", key_of(1)), job_named("a"));
  ASSERT_FALSE(unknown);
  const auto words = [](const Status& refused) {
    return refused.error().message.substr(refused.error().message.find("': "));
  };
  EXPECT_EQ(words(status), words(unknown));
  EXPECT_NE(words(status).find("does not know this name, or has another key"), std::string::npos);
  EXPECT_TRUE(list_jobs(access("lab", key_of(1)))->empty());
  const std::lock_guard lock(mutex_);
  EXPECT_NE(log_.find("handshake failed"), std::string::npos);
}

// Its memory would be the server's, before anything is known of it.
TEST_F(ServerTest, WhoeverSendsALongerMessageThanItMayIsHungUpOn) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto client = auth::ControlClient::connect(access("lab", key_of(1)), deadline);
  ASSERT_TRUE(client) << client.error().message;
  const std::vector<uint32_t> positions(TenantOptions().max_slots + 1);
  addend_control_join join{};
  net::put_text(join.job.name, "a");
  join.job.world = 1;
  join.job.slots = join.positions = static_cast<uint32_t>(positions.size());
  // Perhaps it hangs up before the end.
  (void)(*client)->send(ADDEND_CONTROL_JOIN, join, positions, deadline);
  const auto answer = (*client)->receive(deadline);
  ASSERT_FALSE(answer);
  EXPECT_TRUE((*client)->is_lost());
  EXPECT_EQ(answer.error().code, Errc::kUnavailable) << answer.error().message;
}

TEST_F(ServerTest, MetricsNameJobsAndEveryReason) {
  ASSERT_TRUE(create_job(access("lab", key_of(1)), job_named("ring")));
  const std::string metrics = server_->metrics();
  for (const char* line : {"addend_jobs 1\n", "addend_job_workers{tenant=\"lab\",job=\"ring\"} 4\n",
                           "addend_refused_total{tenant=\"\",job=\"\",reason=\"truncated\"} 0\n",
                           "addend_refused_total{tenant=\"lab\",job=\"ring\",reason=\"ended\"} 0\n",
                           "# TYPE addend_job_turns_total counter\n"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << "\nin\n" << metrics;
  }
}

TEST_F(ServerTest, AThreadThatIsStuckIsNamedUntilItIsAtWorkAgain) {
  const uint16_t port = server_->http_port();
  const auto health_after = [&](const std::string& status) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    auto page = get(port, "/healthz");
    while (page.first != status && std::chrono::steady_clock::now() < deadline)
      page = get(port, "/healthz");
    return page;
  };
  EXPECT_EQ(get(port, "/healthz").first, "200");
  {
    const Stopped stuck("addend data 1");
    if (stuck.problem() != 0) GTEST_SKIP() << "no ptrace: " << std::strerror(stuck.problem());
    const auto [status, text] = health_after("503");
    EXPECT_EQ(status, "503");
    EXPECT_EQ(text, "data thread 1 has not been at work for 10 s\n");
    EXPECT_EQ(get(port, "/readyz"), std::pair(status, text));
  }
  EXPECT_EQ(health_after("200").first, "200");
}

// Those are for the application's threads.
TEST_F(ServerTest, ItsThreadsTakeNoSignals) {
  uint32_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.rfind("addend ", 0) != 0) continue;
    ++count;
    std::ifstream status(task.path() / "status");
    while (std::getline(status, line) && line.rfind("SigBlk:", 0) != 0) {
    }
    constexpr uint64_t kInterrupt = uint64_t{1} << (SIGINT - 1);
    EXPECT_NE(std::stoull(line.substr(7), nullptr, 16) & kInterrupt, 0u) << name;
  }
  EXPECT_EQ(count, 4u);  // two data threads, the control plane's and the pages'
}

TEST_F(ServerTest, ADrainedServerTakesNoJobs) {
  ASSERT_TRUE(create_job(access("lab", key_of(1)), job_named("idle")));
  server_->drain(std::chrono::milliseconds(50));
  const Status status = create_job(access("lab", key_of(1)), job_named("late"));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kUnavailable);
  EXPECT_TRUE(list_jobs(access("lab", key_of(1)))->empty());
}

TEST(ServerOptions, ThatCannotWorkAreRefused) {
  const auto refused = [](const ServerOptions& options) {
    return !Server::start(options, [](LogLevel, std::string_view, std::span<const LogField>) {
            }).has_value();
  };
  ServerOptions options;
  EXPECT_TRUE(refused(options));
  options.tenants.resize(1);
  options.tenants[0].name = "a";
  EXPECT_TRUE(refused(options));  // no key
  options.tenants[0].key = key_of(1);
  options.tenants[0].name = "a b";
  EXPECT_TRUE(refused(options));
  options.tenants[0].name = "a";
  options.threads = 65;
  EXPECT_TRUE(refused(options));
  options.threads = 2;
  options.data_port = 65535;
  EXPECT_TRUE(refused(options));
  options.data_port = 0;
  options.max_connections = 0;
  EXPECT_TRUE(refused(options));
  options.max_connections = 1;
  options.tenants.push_back(options.tenants[0]);
  EXPECT_TRUE(refused(options));
}

}  // namespace
}  // namespace addend
