// SPDX-License-Identifier: Apache-2.0
// What a server remembers of its jobs over a restart, as bytes. docs/formats/state.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "addend/result.h"
#include "addend/service.h"
#include "wire/control.h"

namespace addend::service {

/// A job as messages and journals have it, and back.
addend_control_job message_of(const JobOptions& options);
JobOptions options_of(const addend_control_job& message);

/// Each word is mixed in by a step that is one to one in it, so bytes of one length that differ in
/// one word never agree.
uint64_t checksum_of(std::span<const uint8_t> bytes);

struct KeptJob {
  std::string tenant;
  JobOptions options;
  bool draining = false;
};

std::vector<uint8_t> encode_jobs(std::span<const KeptJob> jobs);
/// kMalformed if the bytes are not exactly what encode_jobs wrote.
Result<std::vector<KeptJob>> decode_jobs(std::span<const uint8_t> bytes);

}  // namespace addend::service
