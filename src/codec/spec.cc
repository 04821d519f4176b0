// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "addend/codec.h"
#include "codec/options.h"

namespace addend {
namespace {

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '+';
  });
}

Error bad_spec(std::string_view text, const std::string& why) {
  return make_error(Errc::kInvalidArgument, "codec spec '" + std::string(text) + "': " + why +
                                                " (expected NAME or NAME:key=value,key=value)");
}

}  // namespace

Result<CodecSpec> CodecSpec::parse(std::string_view text) {
  CodecSpec spec;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  if (!is_word(name)) return bad_spec(text, "the codec's name is missing or has odd characters");
  spec.name = name;
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    const bool named = equals != std::string_view::npos;
    const std::string key(named                  ? item.substr(0, equals)
                          : spec.options.empty() ? unnamed_option(name)
                                                 : std::string_view());
    const std::string_view value = named ? item.substr(equals + 1) : item;
    if (!is_word(key) || !is_word(value)) {
      return bad_spec(text, "'" + std::string(item) + "' is not key=value");
    }
    for (const auto& option : spec.options) {
      if (option.first == key) return bad_spec(text, "'" + key + "' is given twice");
    }
    spec.options.emplace_back(key, value);
    if (comma == std::string_view::npos) return spec;
    rest.remove_prefix(comma + 1);
  }
}

std::string CodecSpec::to_string() const {
  std::string text = name;
  for (std::size_t i = 0; i < options.size(); ++i) {
    text += (i == 0 ? ":" : ",") + options[i].first + "=" + options[i].second;
  }
  return text;
}

}  // namespace addend
