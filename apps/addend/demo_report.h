// SPDX-License-Identifier: Apache-2.0
// How `addend demo` shows what it found: text for people, JSON for tools/report.py.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/addend/demo_run.h"
#include "apps/workload/model.h"

namespace addend::cli {

struct ModelOutcome {
  const workload::Model* model = nullptr;
  std::vector<DemoOutcome> codecs;
};

/// Links for which a step's time is estimated, in Gbit/s.
inline constexpr double kLinks[] = {1, 10, 100};

/// Codec time plus the time that one worker's bytes take on the link. An estimate: no latency, no
/// overlap, no congestion; dense is counted without codec time.
double estimate_us(const DemoOutcome& outcome, double gbit_per_s);

/// One model's table.
std::string model_text(const ModelOutcome& outcome);
/// What the columns mean.
std::string legend();

nlohmann::json model_json(const ModelOutcome& outcome);

}  // namespace addend::cli
