// SPDX-License-Identifier: Apache-2.0
// What the server gives up once its sockets are open and its keys are read.
#pragma once

#include <string>

#include "addend/result.h"

namespace addend::cli {

/// Becomes `user` (if not empty), for good; no core dumps, no new privileges.
Status drop_privileges(const std::string& user);

/// From now on no thread of this process may open files or sockets, start programs or look into
/// other processes: such calls fail with EPERM. `connects`: but sockets, to reach a next server.
Status restrict_system_calls(bool connects);

}  // namespace addend::cli
