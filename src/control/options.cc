// SPDX-License-Identifier: Apache-2.0
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

Status read_window(std::string_view value, uint32_t& to) {
  double steps = 0;
  ADDEND_TRY(read_number("window", value, 1, 1e6, steps));
  to = static_cast<uint32_t>(steps);
  return to == steps ? Status() : bad("window", value, "a whole number of steps");
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

template <typename Choice>
Status read_choice(std::string_view key, std::string_view value, const char* first,
                   const char* second, Choice& to) {
  if (value != first && value != second)
    return bad(key, value, std::string(first) + " or " + second);
  to = static_cast<Choice>(value == second);
  return {};
}

Status read_option(std::string_view key, std::string_view value, Options& options) {
  constexpr double kMostFactor = 1e6;
  if (key == "policy") return read_choice(key, value, "auto", "gravac", options.policy);
  if (key == "floor") return read_floor(value, options.floor);
  if (key == "window") return read_window(value, options.window);
  if (key == "window_s") return read_number(key, value, 0, 3600, options.window_s);
  if (key == "epsilon") return read_number(key, value, 0, 1, options.epsilon);
  if (key == "omega") return read_number(key, value, 0, 1, options.omega);
  if (key == "least") return read_number(key, value, 1.5, kMostFactor, options.least);
  if (key == "most") return read_number(key, value, 1.5, kMostFactor, options.most);
  if (key == "scaling") return read_choice(key, value, "exponential", "geometric", options.scaling);
  return make_error(Errc::kInvalidArgument,
                    "adaptive has no option '" + std::string(key) +
                        "': it has policy, floor, window, window_s, epsilon, omega, least, most, "
                        "scaling");
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
