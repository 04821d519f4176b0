// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "addend/control.h"

namespace addend::control {
namespace {

Error bad(std::string_view key, std::string_view value, const std::string& expected) {
  return make_error(Errc::kInvalidArgument, "adaptive: " + std::string(key) + "=" +
                                                std::string(value) + " is not " + expected);
}

Status read_number(std::string_view key, std::string_view value, double least, double most,
                   double& to) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !(number >= least) ||
      !(number <= most)) {
    return bad(key, value,
               "a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  to = number;
  return {};
}

Status read_steps(std::string_view key, std::string_view value, uint32_t& to) {
  double steps = 0;
  ADDEND_TRY(read_number(key, value, 1, 1e6, steps));
  to = static_cast<uint32_t>(steps);
  return to == steps ? Status() : bad(key, value, "a whole number of steps");
}

Status read_floor(std::string_view value, double& to) {
  if (value == "exact") {
    to = 1.0;
  } else if (value == "safe") {
    to = 0.9;
  } else if (value == "fast") {
    to = 0.7;
  } else {
    return bad("floor", value, "exact, safe or fast");
  }
  return {};
}

Status read_policy(std::string_view value, Policy& to) {
  const auto found = std::find(std::begin(kPolicies), std::end(kPolicies), value);
  if (found == std::end(kPolicies)) return bad("policy", value, "auto, gravac or accordion");
  to = static_cast<Policy>(found - std::begin(kPolicies));
  return {};
}

Status read_scaling(std::string_view value, Scaling& to) {
  if (value != "exponential" && value != "geometric")
    return bad("scaling", value, "exponential or geometric");
  to = value == "geometric" ? Scaling::kGeometric : Scaling::kExponential;
  return {};
}

Status read_option(std::string_view key, std::string_view value, Options& options) {
  constexpr double kMostFactor = 1e6;
  if (key == "policy") return read_policy(value, options.policy);
  if (key == "floor") return read_floor(value, options.floor);
  if (key == "window") return read_steps(key, value, options.window);
  if (key == "every") return read_steps(key, value, options.every);
  if (key == "window_s") return read_number(key, value, 0, 3600, options.window_s);
  if (key == "epsilon") return read_number(key, value, 0, 1, options.epsilon);
  if (key == "omega") return read_number(key, value, 0, 1, options.omega);
  if (key == "least") return read_number(key, value, 1.5, kMostFactor, options.least);
  if (key == "most") return read_number(key, value, 1.5, kMostFactor, options.most);
  if (key == "scaling") return read_scaling(value, options.scaling);
  return make_error(Errc::kInvalidArgument,
                    "adaptive has no option '" + std::string(key) +
                        "': it has policy, floor, window, window_s, every, epsilon, omega, "
                        "least, most, scaling");
}

}  // namespace

Result<Options> Options::parse(std::string_view text) {
  Options options;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return make_error(Errc::kInvalidArgument,
                        "adaptive: '" + std::string(part) + "' is not key=value");
    }
    ADDEND_TRY(read_option(part.substr(0, equals), part.substr(equals + 1), options));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
  }
  if (options.least > options.most) {
    return make_error(Errc::kInvalidArgument, "adaptive: least= is above most=");
  }
  return options;
}

}  // namespace addend::control
