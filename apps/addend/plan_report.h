// SPDX-License-Identifier: Apache-2.0
// What `addend plan` says: a verdict, a table of engines and codecs, and a document with curves.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "addend/plan.h"

namespace addend::cli {

/// What is asked.
struct PlanQuestion {
  control::Job job;
  control::Calibration calibration;
  control::Network network;  ///< its engine is not looked at
  std::vector<control::Engine> engines;
  double floor = 0.9;
  std::vector<std::string> notes;  ///< what the answer rests on
};

/// One engine with one codec.
struct PlanRow {
  control::Engine engine = control::Engine::kMesh;
  std::size_t codec = 0;
  control::Prediction predicted;
  double over_f32 = 1;  ///< dense's step time by this one, on the same engine
  double over_f16 = 0;  ///< cast:f16's; 0: not calibrated
  double break_even_bytes_per_s = 0;
  control::WorkerRange workers;
};

struct PlanAnswer {
  control::Advice advice;
  std::vector<PlanRow> rows;
};

PlanAnswer answer(const PlanQuestion& question);

/// The first line: what to do, or that nothing pays.
std::string verdict(const PlanQuestion& question, const control::Advice& advice);
std::string plan_text(const PlanQuestion& question, const PlanAnswer& answer);
/// With curves over link speed and workers; plan_page.h makes a page of it.
nlohmann::json plan_json(const PlanQuestion& question, const PlanAnswer& answer);

}  // namespace addend::cli
