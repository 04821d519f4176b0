// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "apps/addend/calibration.h"
#include "apps/addend/output.h"

namespace addend::cli {
namespace {

using control::Calibration;
using control::CodecCost;
using control::CodecModel;
using control::Line;
using nlohmann::json;

json to_json(const Line& line) { return json::array({line.fixed, line.slope}); }

// Reading throws what is missing or of another type; read_calibration makes an error of it.

double above_zero(const json& from, const char* what) {
  const double value = from.get<double>();
  if (!std::isfinite(value) || value < 0) throw std::runtime_error(std::string(what) + " below 0");
  return value;
}

Line line_of(const json& from) {
  return {above_zero(from.at(0), "a line"), above_zero(from.at(1), "a line")};
}

CodecModel model_of(const json& from) {
  CodecModel model;
  from.at("codec").get_to(model.spec);
  const int loss = from.at("loss");
  if (loss < 0 || loss > static_cast<int>(control::Loss::kBiased))
    throw std::runtime_error("no loss " + std::to_string(loss));
  model.loss = static_cast<control::Loss>(loss);
  model.fidelity = above_zero(from.at("fidelity"), "a fidelity");
  model.keeps = above_zero(from.at("keeps"), "a density");
  from.at("same_positions").get_to(model.same_positions);
  from.at("rounds").get_to(model.rounds);
  double last = 0;
  for (const json& one : from.at("costs")) {
    const CodecCost cost{above_zero(one.at("density"), "a density"), line_of(one.at("encode_s")),
                         line_of(one.at("decode_s")), line_of(one.at("up_bytes")),
                         line_of(one.at("down_bytes"))};
    if (!(cost.density > last)) throw std::runtime_error(model.spec + ": densities do not rise");
    last = cost.density;
    model.costs.push_back(cost);
  }
  if (model.costs.empty()) throw std::runtime_error(model.spec + " has no costs");
  return model;
}

Calibration calibration_of(const json& from) {
  if (from.at("format") != "addend-calibration") throw std::runtime_error("another format");
  if (from.at("version") != 1)
    throw std::runtime_error("version " + from.at("version").dump() + ", this command reads 1");
  Calibration calibration;
  calibration.add_s = line_of(from.at("add_s"));
  for (const json& one : from.at("codecs"))
    calibration.codecs.push_back(model_of(one));
  if (calibration.codecs.empty() || calibration.codecs.front().spec != "dense")
    throw std::runtime_error("dense is not in front");
  return calibration;
}

}  // namespace

std::string to_json(const Calibration& calibration) {
  json codecs = json::array();
  for (const CodecModel& one : calibration.codecs) {
    json costs = json::array();
    for (const CodecCost& cost : one.costs) {
      costs.push_back({{"density", cost.density},
                       {"encode_s", to_json(cost.encode_s)},
                       {"decode_s", to_json(cost.decode_s)},
                       {"up_bytes", to_json(cost.up_bytes)},
                       {"down_bytes", to_json(cost.down_bytes)}});
    }
    codecs.push_back({{"codec", one.spec},
                      {"loss", static_cast<int>(one.loss)},
                      {"fidelity", one.fidelity},
                      {"keeps", one.keeps},
                      {"same_positions", one.same_positions},
                      {"rounds", one.rounds},
                      {"costs", std::move(costs)}});
  }
  return json{{"format", "addend-calibration"},
              {"version", 1},
              {"add_s", to_json(calibration.add_s)},
              {"codecs", std::move(codecs)}}
      .dump(2);
}

Result<Calibration> read_calibration(const std::string& path) {
  const auto text = read_text(path);
  ADDEND_TRY(text);
  try {
    return calibration_of(json::parse(*text));
  } catch (const std::exception& error) {
    return make_error(Errc::kMalformed, path + ": not a calibration: " + error.what());
  }
}

}  // namespace addend::cli
