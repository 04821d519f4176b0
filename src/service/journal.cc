// SPDX-License-Identifier: Apache-2.0
#include "service/journal.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "net/control_message.h"
#include "wire/hash.h"

namespace addend::service {
namespace {

static_assert(std::endian::native == std::endian::little, "journals are little endian");

constexpr char kMagic[8] = {'A', 'D', 'D', 'J', 'O', 'B', 'S', '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kDraining = 1;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t jobs;
};

struct Record {
  char tenant[ADDEND_CONTROL_NAME_BYTES];
  addend_control_job job;
  uint32_t flags;
  uint32_t reserved;  // 0
};
static_assert(sizeof(Header) == 16 && sizeof(Record) == 200);

template <typename T>
void append(std::vector<uint8_t>& bytes, const T& value) {
  // Not insert: at -O3 g++ 12 warns of an overflow that there is not.
  bytes.resize(bytes.size() + sizeof(T));
  std::memcpy(bytes.data() + bytes.size() - sizeof(T), &value, sizeof(T));
}

Error damaged(const char* how) {
  return make_error(Errc::kMalformed, std::string("saved jobs are damaged: ") + how);
}

}  // namespace

uint64_t checksum_of(std::span<const uint8_t> bytes) {
  uint64_t sum = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    sum = addend_mix64(sum ^ word);
  }
  return sum;
}

addend_control_job message_of(const JobOptions& options) {
  addend_control_job job{};
  net::put_text(job.name, options.name);
  job.world = options.world;
  job.slots = options.slots;
  job.payload_bytes = options.payload_bytes;
  job.quorum = options.quorum;
  job.patience_ns = static_cast<uint64_t>(options.patience.count());
  if (options.floats) job.flags |= ADDEND_CONTROL_FLOATS;
  if (options.key.is_set()) {
    job.flags |= ADDEND_CONTROL_OWN_KEY;
    std::memcpy(job.key, options.key.bytes.data(), sizeof(job.key));
  }
  return job;
}

JobOptions options_of(const addend_control_job& message) {
  JobOptions options;
  options.name = net::get_text(message.name);
  options.world = message.world;
  options.slots = message.slots;
  options.payload_bytes = message.payload_bytes;
  options.floats = (message.flags & ADDEND_CONTROL_FLOATS) != 0;
  options.patience = std::chrono::nanoseconds(message.patience_ns);
  options.quorum = message.quorum;
  if ((message.flags & ADDEND_CONTROL_OWN_KEY) != 0) {
    std::memcpy(options.key.bytes.data(), message.key, sizeof(message.key));
  }
  return options;
}

std::vector<uint8_t> encode_jobs(std::span<const KeptJob> jobs) {
  std::vector<uint8_t> bytes;
  Header header{{}, kVersion, static_cast<uint32_t>(jobs.size())};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  append(bytes, header);
  for (const KeptJob& job : jobs) {
    Record record{};
    net::put_text(record.tenant, job.tenant);
    record.job = message_of(job.options);
    record.flags = job.draining ? kDraining : 0;
    append(bytes, record);
  }
  append(bytes, checksum_of(bytes));
  return bytes;
}

Result<std::vector<KeptJob>> decode_jobs(std::span<const uint8_t> bytes) {
  Header header{};
  if (bytes.size() < sizeof(header) + sizeof(uint64_t)) return damaged("cut off");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return damaged("something else");
  if (header.version != kVersion) {
    return make_error(Errc::kMalformed, "saved jobs have version " +
                                            std::to_string(header.version) +
                                            ", which this server does not know");
  }
  const std::size_t length = sizeof(header) + std::size_t{header.jobs} * sizeof(Record);
  if (bytes.size() != length + sizeof(uint64_t)) return damaged("another length than they say");
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + length, sizeof(checksum));
  if (checksum != checksum_of(bytes.first(length))) return damaged("their checksum is wrong");
  std::vector<KeptJob> jobs;
  for (uint32_t i = 0; i < header.jobs; ++i) {
    Record record{};
    std::memcpy(&record, bytes.data() + sizeof(header) + i * sizeof(record), sizeof(record));
    jobs.push_back(
        {net::get_text(record.tenant), options_of(record.job), (record.flags & kDraining) != 0});
  }
  return jobs;
}

}  // namespace addend::service
