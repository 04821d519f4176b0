// SPDX-License-Identifier: Apache-2.0
#include "codec/options.h"

#include <charconv>

namespace addend {
namespace {

const std::string* find(const CodecSpec& spec, std::string_view key) {
  for (const auto& option : spec.options) {
    if (option.first == key) return &option.second;
  }
  return nullptr;
}

Error bad_value(const CodecSpec& spec, std::string_view key, std::string_view value,
                const std::string& expected) {
  return make_error(Errc::kInvalidArgument, "codec '" + spec.name + "': " + std::string(key) + "=" +
                                                std::string(value) + " is not " + expected);
}

template <typename T>
bool parse_whole(const std::string& text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename T>
Result<T> read(const CodecSpec& spec, std::string_view key, T fallback, T least, T most) {
  const std::string* text = find(spec, key);
  if (text == nullptr) return fallback;
  T value{};
  if (parse_whole(*text, &value) && value >= least && value <= most) return value;
  return bad_value(spec, key, *text,
                   "a number from " + std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace

Status check_options(const CodecSpec& spec, const std::vector<OptionHelp>& known) {
  for (const auto& option : spec.options) {
    std::string names;
    bool found = false;
    for (const OptionHelp& help : known) {
      found = found || help.key == option.first;
      names += (names.empty() ? "" : ", ") + std::string(help.key);
    }
    if (!found) {
      return make_error(Errc::kInvalidArgument,
                        "codec '" + spec.name + "' has no option '" + option.first +
                            "'; it has: " + (names.empty() ? "none" : names));
    }
  }
  return {};
}

Result<uint32_t> read_choice(const CodecSpec& spec, const OptionHelp& option, uint32_t fallback) {
  const std::string* text = find(spec, option.key);
  if (text == nullptr) return fallback;
  std::string_view rest = option.values;
  for (uint32_t position = 0; !rest.empty(); ++position) {
    const std::size_t bar = rest.find('|');
    if (rest.substr(0, bar) == *text) return position;
    rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
  }
  return bad_value(spec, option.key, *text, "one of " + std::string(option.values));
}

Result<uint64_t> read_integer(const CodecSpec& spec, std::string_view key, uint64_t fallback,
                              uint64_t least, uint64_t most) {
  return read<uint64_t>(spec, key, fallback, least, most);
}

Result<double> read_number(const CodecSpec& spec, std::string_view key, double fallback,
                           double least, double most) {
  return read<double>(spec, key, fallback, least, most);
}

}  // namespace addend
