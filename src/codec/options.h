// SPDX-License-Identifier: Apache-2.0
// Typed reading of a codec spec's options. Each codec describes its options once; help and errors
// come from that description.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "addend/codec.h"

namespace addend {

/// One option as users see it.
struct OptionHelp {
  std::string_view key;
  std::string_view values;  ///< "auto|packed" or "NUMBER"
  std::string_view text;
  bool unnamed = false;  ///< of the first option: its value may stand without the key, "cast:f16"
};

/// The option of this codec whose key may be left out, or empty.
std::string_view unnamed_option(std::string_view codec);

/// Refuses options that `known` does not list, naming those it does.
Status check_options(const CodecSpec& spec, const std::vector<OptionHelp>& known);

/// The position of the option's value among the alternatives of its help ("a|b|c"), or `fallback`
/// if not given.
Result<uint32_t> read_choice(const CodecSpec& spec, const OptionHelp& option, uint32_t fallback);
Result<uint64_t> read_integer(const CodecSpec& spec, std::string_view key, uint64_t fallback,
                              uint64_t least, uint64_t most);
Result<double> read_number(const CodecSpec& spec, std::string_view key, double fallback,
                           double least, double most);

}  // namespace addend
