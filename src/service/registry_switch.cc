// SPDX-License-Identifier: Apache-2.0
// A switch that folds all jobs of this server: which it can, where in it they are, and what it has
// to know of them (docs/formats/switch.md).
#include <bit>

#include <arpa/inet.h>

#include "service/registry.h"

namespace addend::service {
namespace {

constexpr uint32_t kMostWorkers = 32;  // bits of a register

std::string hex(uint64_t number) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, number >>= 4)
    *digit = kDigits[number & 15];
  return text;
}

bool is_v4(const net::Address& address) { return IN6_IS_ADDR_V4MAPPED(&address.raw.sin6_addr); }

// "10.0.0.1 7000". REQUIRES: is_v4.
std::string place_of(const net::Address& address) {
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, address.raw.sin6_addr.s6_addr + 12, text, sizeof(text));
  return std::string(text) + " " + std::to_string(address.port());
}

std::string line(const char* what, std::initializer_list<uint32_t> numbers) {
  std::string text = what;
  for (const uint32_t number : numbers)
    text += " " + std::to_string(number);
  return text;
}

}  // namespace

Status Registry::check_switch(const JobOptions& options) const {
  if (!in_switch_.publish) return {};
  if (options.world > kMostWorkers) {
    return make_error(Errc::kUnsupported, "a switch folds for at most 32 workers, and job " +
                                              options.name + " has " +
                                              std::to_string(options.world));
  }
  if (options.quorum > 0 || options.patience.count() > 0) {
    return make_error(
        Errc::kUnsupported,
        "a switch has no clock: a job that it folds has neither patience nor a quorum");
  }
  if (!std::has_single_bit(options.slots)) {
    return make_error(Errc::kUnsupported, "a switch has slots in powers of two, and job " +
                                              options.name + " wants " +
                                              std::to_string(options.slots));
  }
  return {};
}

Status Registry::check_reachable(const net::Address& worker) const {
  if (!in_switch_.publish || is_v4(worker)) return {};
  return make_error(
      Errc::kUnsupported,
      "a switch folds what comes over IPv4, and this worker is at " + worker.to_string());
}

// Where in the switch there is room for a job: at a multiple of its slots.
Result<uint32_t> Registry::free_cells(uint32_t slots) const {
  for (uint64_t first = 0; first + slots <= in_switch_.slots; first += slots) {
    bool taken = false;
    for (const auto& [key, job] : jobs_) {
      taken = taken || (job.epoch != 0 && first < uint64_t{job.first_cell} + job.options.slots &&
                        job.first_cell < first + slots);
    }
    if (!taken) return static_cast<uint32_t>(first);
  }
  return make_error(Errc::kCapacity, "the switch has " + std::to_string(in_switch_.slots) +
                                         " slots, and beside the jobs under way no room for " +
                                         std::to_string(slots) + " more");
}

Status Registry::place_in_switch(Job& job, const JobEpoch& epoch) const {
  if (!in_switch_.publish) return {};
  ADDEND_TRY(check_switch(job.options));  // it may be older than the switch
  const auto first = free_cells(job.options.slots);
  if (!first) return first.error();
  job.first_cell = *first;
  const aggregate::SlotsOptions& slots = epoch.slots;
  job.switch_text = line("job", {slots.epoch, slots.boot, slots.world, *first, slots.slots,
                                 slots.payload_bytes}) +
                    " " + hex(epoch.result_key.fixed_tag()) + "\n";
  for (uint32_t w = 0; w < slots.world; ++w) {
    job.switch_text += line("worker", {slots.epoch, w}) + " " + place_of(epoch.workers[w]) + " " +
                       hex(epoch.worker_keys[w].fixed_tag()) + "\n";
  }
  return {};
}

Status Registry::publish() const {
  if (!in_switch_.publish) return {};
  std::string text = "addend switch 1\n";
  for (const auto& [key, job] : jobs_) {
    if (job.epoch != 0) text += job.switch_text;
  }
  return in_switch_.publish({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

// An epoch is over, which nobody who could be told an error is waiting for.
void Registry::republish() const {
  const Status published = publish();
  if (published) return;
  const LogField fields[] = {{"why", published.error().message}};
  log_(LogLevel::kError, "the switch was not told that a job is gone", fields);
}

}  // namespace addend::service
