// SPDX-License-Identifier: Apache-2.0
// How workers and operators reach an aggregation server, and prove who they are. Part of module
// `base`.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace addend {

/// A pre-shared key of the aggregation service; all zeros: none.
struct ServiceKey {
  std::array<uint8_t, 32> bytes{};
  bool is_set() const { return bytes != std::array<uint8_t, 32>{}; }
};

/// Of one end, each PEM or the path of a PEM file; all empty: none.
struct ServiceCertificates {
  std::string authority, certificate, key;
};

/// Where an aggregation server is, and who asks.
struct ServiceAccess {
  /// "host:port" of its control plane. A worker may list several, separated by commas.
  std::string aggregator;
  std::string identity;  ///< tenant, or "tenant/job" with a job's own key
  ServiceKey key;        ///< or certificates
  ServiceCertificates certificates;
};

}  // namespace addend
