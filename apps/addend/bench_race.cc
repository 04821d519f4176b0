// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "apps/addend/bench.h"
#include "apps/addend/worker.h"

namespace addend::cli {

Result<RaceResult> race(const Copy& copy, uint32_t repeats,
                        const std::function<Result<Laps>()>& subject) {
  std::vector<double> memcpy_us, first_us, second_us, first_x, second_x, total_x;
  std::memcpy(copy.target, copy.source, copy.bytes);
  for (uint32_t i = 0; i < repeats; ++i) {
    const double start = now_us();
    std::memcpy(copy.target, copy.source, copy.bytes);
    const double copy_us = now_us() - start;
    auto laps = subject();
    if (!laps) return laps.error();
    memcpy_us.push_back(copy_us);
    first_us.push_back(laps->first_us);
    second_us.push_back(laps->second_us);
    first_x.push_back(laps->first_us / copy_us);
    second_x.push_back(laps->second_us / copy_us);
    total_x.push_back((laps->first_us + laps->second_us) / copy_us);
  }
  RaceResult result;
  result.memcpy_us = median(memcpy_us);
  result.subject = {median(first_us), median(second_us)};
  result.first_x = median(first_x);
  result.second_x = median(second_x);
  result.total_x = median(total_x);
  return result;
}

CodecLine codec_line(const Report& report, const RaceResult& result) {
  const double bytes = static_cast<double>(report.dense_bytes);
  CodecLine line;
  line.mode = report.mode;
  line.memcpy_gb_per_s = bytes / result.memcpy_us * 1e-3;
  line.encode_gb_per_s = bytes / result.subject.first_us * 1e-3;
  line.decode_gb_per_s = bytes / result.subject.second_us * 1e-3;
  line.encode_x = result.first_x;
  line.decode_x = result.second_x;
  line.total_x = result.total_x;
  line.wire_bytes = report.wire_bytes;
  line.ratio = bytes / static_cast<double>(std::max<uint64_t>(report.wire_bytes, 1));
  return line;
}

}  // namespace addend::cli
