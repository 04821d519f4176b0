// SPDX-License-Identifier: Apache-2.0
// The document of `addend plan` as one page: what to do, curves over links and workers, the table.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace addend::cli {

/// REQUIRES: what plan_json made. Loads nothing from anywhere.
std::string plan_page(const nlohmann::json& document);

}  // namespace addend::cli
