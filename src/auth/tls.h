// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 with both ends authenticated: by certificates of one authority, or by a pre-shared key
// that has a name. The only user of OpenSSL's TLS.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "addend/result.h"
#include "auth/frame_key.h"

struct ssl_st;
struct ssl_ctx_st;

namespace addend::auth {

/// Certificates of one end, each as PEM or as the path of a PEM file.
struct Certificates {
  std::string authority, certificate, key;
};

/// How a client proves who it is: with a certificate, or by name and key.
struct Credentials {
  std::string identity;  ///< with a key: its name
  Secret key;
  std::optional<Certificates> certificates;  ///< instead of the key
};

class TlsContext {
 public:
  /// The key of an identity, or nothing. Called during handshakes, on the thread that makes them.
  using FindKey = std::function<std::optional<Secret>(const std::string& identity)>;

  static Result<TlsContext> server(FindKey find_key,
                                   const std::optional<Certificates>& certificates);
  /// With certificates, `host` is the name or address that the server's one must be for.
  static Result<TlsContext> client(const Credentials& credentials, const std::string& host);

  ~TlsContext();
  TlsContext(TlsContext&&) noexcept;
  TlsContext& operator=(TlsContext&&) noexcept;

  struct State;
  ssl_ctx_st* get() const;

 private:
  explicit TlsContext(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

enum class Progress : uint8_t { kDone, kWantRead, kWantWrite, kClosed, kFailed };

/// One connection over a non-blocking socket, which stays the caller's. One thread at a time.
class TlsStream {
 public:
  enum class Side : uint8_t { kClient, kServer };
  static Result<TlsStream> create(const TlsContext& context, int fd, Side side);
  ~TlsStream();
  TlsStream(TlsStream&& other) noexcept;
  TlsStream& operator=(TlsStream&&) = delete;

  /// Goes on with the handshake.
  Progress handshake();
  /// Who the peer is: the pre-shared key's name, or its certificate's common name. Empty before the
  /// handshake is done.
  std::string peer() const;

  Progress read(std::span<uint8_t> into, std::size_t& bytes);
  Progress write(std::span<const uint8_t> from, std::size_t& bytes);
  void close();
  /// What went wrong last.
  std::string problem() const { return problem_; }
  /// Whether that was the end of the connection, without a word.
  bool hung_up() const { return hung_up_; }
  /// Whether the other end's host has not answered for so long that the kernel gave up.
  bool fell_silent() const { return fell_silent_; }

 private:
  explicit TlsStream(ssl_st* ssl) : ssl_(ssl) {}
  Progress progress_of(int result);
  ssl_st* ssl_;
  std::string problem_;
  bool hung_up_ = false, fell_silent_ = false;
};

}  // namespace addend::auth
