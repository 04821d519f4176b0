// SPDX-License-Identifier: Apache-2.0
// Lists of codecs as users write them.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "addend/codec.h"
#include "addend/reduce.h"
#include "addend/result.h"
#include "apps/workload/check.h"

namespace addend::cli {

/// Every codec of this build with the modes worth comparing, dense first; some only of a matrix.
std::vector<std::string> sensible_codecs(bool matrix = false);

/// Adds the repeatable option --codec. `codecs` holds the default.
CLI::Option* add_codec_option(CLI::App& command, std::vector<std::string>& codecs);

/// Parses all of `codecs` and makes sure that each can be created for `layout`, so that a typing
/// error is found before work starts.
Result<std::vector<CodecSpec>> parse_codecs(const std::vector<std::string>& codecs,
                                            const Layout& layout);

/// What the codec may do to a sum of so many workers; what is none of cast, quant,
/// lowrank and the codecs that select must give what adding floats gives.
workload::Tolerance tolerance(const CodecSpec& spec, uint32_t world);
/// The same over a reducer whose sums of floats may be off.
workload::Tolerance tolerance(const CodecSpec& spec, const Reducer& reducer, DType dtype);

/// Adds --dtype and parses its value.
CLI::Option* add_dtype_option(CLI::App& command, std::string& dtype);
DType parse_dtype(const std::string& dtype);

}  // namespace addend::cli
