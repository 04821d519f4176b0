// SPDX-License-Identifier: Apache-2.0
// A job at one aggregation server, or spread over several.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "addend/reduce.h"

#ifdef ADDEND_HAVE_SERVICE

#include "base/quiet_thread.h"
#include "reduce/service/service.h"
#include "reduce/spread.h"

namespace addend {
namespace {

constexpr std::size_t kMaxServers = 64;

Result<std::vector<std::string>> servers_of(const std::string& list) {
  std::vector<std::string> servers;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    servers.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  for (std::size_t i = 0; i < servers.size(); ++i) {
    if (servers[i].empty() && servers.size() > 1) {
      return make_error(Errc::kInvalidArgument, "an aggregator in '" + list + "' has no name");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (servers[i] == servers[j])
        return make_error(Errc::kInvalidArgument, "aggregator " + servers[i] + " is listed twice");
    }
  }
  if (servers.size() > kMaxServers) {
    return make_error(Errc::kInvalidArgument, "a job has at most 64 aggregators");
  }
  return servers;
}

// Shares are told apart by the order of the servers.
Status join_one(const ServiceReducerOptions& options, std::size_t i, std::size_t servers,
                SpreadPart& part) {
  auto reducer = service_client::join_server(options);
  if (!reducer) return reducer.error();
  part.reducer = *std::move(reducer);
  const Reducer::Claim claims[] = {{"the number of their aggregators", servers},
                                   {"the order of their aggregators", i}};
  return part.reducer->agree(claims, std::chrono::steady_clock::now() + options.join_timeout);
}

Result<std::unique_ptr<Reducer>> join_all(const ServiceReducerOptions& options,
                                          const std::vector<std::string>& servers) {
  if (options.quorum > 0) {
    return make_error(Errc::kUnsupported, "a job with a quorum has one aggregator, and these are " +
                                              std::to_string(servers.size()));
  }
  std::vector<SpreadPart> parts(servers.size());
  std::vector<Status> joined(servers.size());
  std::vector<std::thread> threads;
  // At once, so that workers that list them in another order do not wait for each other in vain.
  for (std::size_t i = 0; i < servers.size(); ++i) {
    parts[i].name = "aggregator " + servers[i];
    threads.push_back(quiet_thread("addend join", [&, i] {
      ServiceReducerOptions one = options;
      one.access.aggregator = servers[i];
      joined[i] = join_one(one, i, servers.size(), parts[i]);
    }));
  }
  for (std::thread& thread : threads)
    thread.join();
  for (std::size_t i = 0; i < servers.size(); ++i) {
    if (joined[i]) continue;
    return make_error(joined[i].error().code, parts[i].name + ": " + joined[i].error().message);
  }
  return create_spread_reducer(std::move(parts));
}

}  // namespace

bool has_service() { return true; }

Result<std::unique_ptr<Reducer>> create_service_reducer(const ServiceReducerOptions& options) {
  const auto servers = servers_of(options.access.aggregator);
  if (!servers) return servers.error();
  return servers->size() == 1 ? service_client::join_server(options) : join_all(options, *servers);
}

}  // namespace addend

#else

namespace addend {

bool has_service() { return false; }
Result<std::unique_ptr<Reducer>> create_service_reducer(const ServiceReducerOptions&) {
  return make_error(Errc::kUnsupported,
                    "this build has no aggregation service; install libssl-dev and build again");
}

}  // namespace addend

#endif
