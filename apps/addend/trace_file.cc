// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/trace_file.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/addend/output.h"

namespace addend::cli {
namespace {

using nlohmann::json;

// Reading throws what is missing or of another type; read_trace makes an error of it.

control::Options options_of(const json& from) {
  const std::string policy = from.at("policy"), scaling = from.at("scaling");
  const Result<control::Options> known = control::Options::parse("policy=" + policy);
  if (!known) throw std::runtime_error("no policy " + policy);
  control::Options options = *known;
  options.scaling =
      scaling == "geometric" ? control::Scaling::kGeometric : control::Scaling::kExponential;
  from.at("floor").get_to(options.floor);
  from.at("window").get_to(options.window);
  from.at("window_s").get_to(options.window_s);
  options.every = from.value("every", 1u);  // which the first traces do not have
  from.at("epsilon").get_to(options.epsilon);
  from.at("omega").get_to(options.omega);
  from.at("least").get_to(options.least);
  from.at("most").get_to(options.most);
  if (options.window == 0 || options.every == 0 || !(options.least > 1) || !(options.most < 1e9))
    throw std::runtime_error("options out of range");
  return options;
}

control::Setup setup_of(const json& from) {
  control::Setup setup;
  setup.options = options_of(from.at("options"));
  from.at("world").get_to(setup.world);
  from.at("latency_s").get_to(setup.latency_s);
  from.at("bytes_per_s").get_to(setup.bytes_per_s);
  for (const json& one : from.at("candidates")) {
    const int loss = one.at("loss");
    if (loss < 0 || loss > static_cast<int>(control::Loss::kBiased))
      throw std::runtime_error("no loss " + std::to_string(loss));
    setup.candidates.push_back({one.at("spec"), static_cast<control::Loss>(loss), one.at("factor"),
                                one.at("bits"), one.at("union_bits"), one.at("rounds")});
  }
  for (const json& one : from.at("buckets"))
    setup.buckets.push_back({one.at("elements"), one.at("bytes")});
  return setup;
}

double number_of(const json& from) {
  return from.is_null() ? std::numeric_limits<double>::quiet_NaN() : from.get<double>();
}

control::Reason reason_of(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(control::Reason::kGain); ++i) {
    const auto reason = static_cast<control::Reason>(i);
    if (name == control::reason_name(reason)) return reason;
  }
  throw std::runtime_error("no reason " + name);
}

control::Decision decision_of(const json& from) {
  control::Decision out;
  from.at("window").get_to(out.window);
  from.at("plan").get_to(out.plan);
  for (const json& one : from.at("why"))
    out.why.push_back(reason_of(one));
  from.at("steps").get_to(out.steps);
  from.at("reference_steps").get_to(out.reference_steps);
  from.at("probe").get_to(out.probe);
  out.realised_s = number_of(from.at("realised_s"));
  out.foreseen_s = number_of(from.at("foreseen_s"));
  out.predicted_s = number_of(from.at("predicted_s"));
  out.predicted_dense_s = number_of(from.at("predicted_dense_s"));
  out.phi = number_of(from.at("phi"));
  out.latency_s = number_of(from.at("latency_s"));
  out.bytes_per_s = number_of(from.at("bytes_per_s"));
  return out;
}

control::Trace trace_of(const json& from) {
  if (from.at("format") != "addend-trace") throw std::runtime_error("another format");
  if (from.at("version") != 3)
    throw std::runtime_error("version " + from.at("version").dump() + ", this command reads 3");
  control::Trace trace;
  trace.setup = setup_of(from);
  const uint64_t buckets = trace.setup.buckets.size(), candidates = trace.setup.candidates.size();
  for (const json& one : from.at("windows")) {
    std::vector<double> signals;
    for (const json& value : one.at("signals"))
      signals.push_back(number_of(value));
    if (signals.size() != control::Observation::size(buckets, candidates)) {
      throw std::runtime_error("window " + std::to_string(trace.windows.size()) + " has " +
                               std::to_string(signals.size()) + " signals");
    }
    trace.windows.push_back({control::Observation::from(signals, buckets, candidates),
                             decision_of(one.at("decision"))});
    if (trace.windows.back().decision.plan.size() != buckets ||
        trace.windows.back().decision.why.size() != buckets)
      throw std::runtime_error("a plan of other buckets");
  }
  return trace;
}

}  // namespace

Result<control::Trace> read_trace(const std::string& path) {
  const auto text = read_text(path);
  ADDEND_TRY(text);
  try {
    return trace_of(json::parse(*text));
  } catch (const std::exception& error) {
    return make_error(Errc::kMalformed, path + ": not a trace of decisions: " + error.what());
  }
}

}  // namespace addend::cli
