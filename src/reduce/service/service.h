// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "addend/reduce.h"

namespace addend::service_client {

/// A worker's end of a job at one server.
Result<std::unique_ptr<Reducer>> join_server(const ServiceReducerOptions& options);

}  // namespace addend::service_client
