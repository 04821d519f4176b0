// SPDX-License-Identifier: Apache-2.0
// ADDEND_ASSERT states a contract between our own functions; checked in developer and fuzz builds
// only.
#pragma once

#include <cstdlib>

#ifdef ADDEND_ASSERTIONS
#define ADDEND_ASSERT(condition) ((condition) ? (void)0 : std::abort())
#else
#define ADDEND_ASSERT(condition) ((void)0)
#endif
