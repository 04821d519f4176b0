// SPDX-License-Identifier: Apache-2.0
#include "service/http.h"

#include <array>

#include <sys/socket.h>

#include "gtest/gtest.h"
#include "net/address.h"
#include "wire/hash.h"

namespace addend::service {
namespace {

Pages pages() {
  return {[] { return std::string("<page>"); }, [] { return std::string("{}"); },
          [] { return std::string("addend_jobs 0\n"); }, [] { return std::string(); },
          [] { return std::string("draining"); }};
}

std::string status_of(const std::string& request) {
  const std::string answer = answer_to(request, pages());
  return answer.substr(9, 3);
}

TEST(Http, PagesAreFoundAndNothingElse) {
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), "200");
  EXPECT_EQ(status_of("GET /metrics?x=1 HTTP/1.0\r\nHost: a\r\n\r\n"), "200");
  EXPECT_EQ(status_of("GET /healthz HTTP/1.1\r\n\r\n"), "200");
  EXPECT_EQ(status_of("GET /readyz HTTP/1.1\r\n\r\n"), "503");
  EXPECT_TRUE(answer_to("GET /readyz HTTP/1.1\r\n\r\n", pages()).ends_with("\r\n\r\ndraining\n"));
  EXPECT_EQ(status_of("GET /etc/passwd HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\n\r\n"), "405");
  EXPECT_EQ(status_of("GET /\r\n\r\n"), "400");
  EXPECT_EQ(status_of("\r\n\r\n"), "400");
  EXPECT_EQ(status_of(""), "400");
  const std::string answer = answer_to("GET /metrics HTTP/1.1\r\n\r\n", pages());
  EXPECT_NE(answer.find("Content-Length: 14\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\naddend_jobs 0\n"));
  EXPECT_TRUE(answer_to("HEAD /metrics HTTP/1.1\r\n\r\n", pages()).ends_with("\r\n\r\n"));
}

TEST(Http, AnyBytesAreAnswered) {
  const std::string good = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    std::string request = good.substr(0, addend_random(seed, 0) % (good.size() + 1));
    for (uint64_t i = 1; i < 4 && !request.empty(); ++i)
      request[addend_random(seed, i) % request.size()] =
          static_cast<char>(addend_random(seed, 10 + i));
    ASSERT_TRUE(answer_to(request, pages()).starts_with("HTTP/1.1 ")) << "seed " << seed;
  }
}

TEST(Http, TwoServersOnOnePortAreRefused) {
  const auto first = Http::start("127.0.0.1", 0, pages());
  ASSERT_TRUE(first) << first.error().message;
  const auto second = Http::start("127.0.0.1", (*first)->port(), pages());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kIo);
  EXPECT_NE(second.error().message.find(std::to_string((*first)->port())), std::string::npos);
}

TEST(Http, ManyThatSayNothingDoNotKeepAReaderOut) {
  const auto http = Http::start("127.0.0.1", 0, pages());
  ASSERT_TRUE(http);
  const auto to = net::resolve("127.0.0.1", (*http)->port());
  const auto dial = [&] {
    net::Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to->raw), sizeof(to->raw)),
              0);
    return socket;
  };
  std::list<net::Descriptor> silent;
  for (int i = 0; i < 300; ++i)
    silent.push_back(dial());
  const net::Descriptor reader = dial();
  constexpr std::string_view kRequest = "GET /metrics HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(reader.get(), kRequest.data(), kRequest.size(), 0), ssize_t{kRequest.size()});
  std::string answer;
  std::array<char, 512> bytes;
  for (ssize_t count = 1; count > 0;) {
    count = recv(reader.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) answer.append(bytes.data(), static_cast<std::size_t>(count));
  }
  EXPECT_TRUE(answer.ends_with("addend_jobs 0\n")) << answer;
}

}  // namespace
}  // namespace addend::service
