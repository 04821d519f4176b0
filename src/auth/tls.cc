// SPDX-License-Identifier: Apache-2.0
#include "auth/tls.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

namespace addend::auth {
namespace {

// TLS_AES_128_GCM_SHA256: an external key belongs to one hash, and this suite is mandatory.
constexpr unsigned char kSuite[] = {0x13, 0x01};
constexpr std::size_t kMaxIdentity = 160;

std::string library_error() {
  char text[256] = "unknown";
  const unsigned long code = ERR_get_error();
  if (code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

Error tls_error(const std::string& what) {
  return make_error(Errc::kUnavailable, what + ": " + library_error());
}

// The session that stands for an external key in TLS 1.3.
SSL_SESSION* session_of(SSL* ssl, const Secret& key) {
  const SSL_CIPHER* suite = SSL_CIPHER_find(ssl, kSuite);
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr || suite == nullptr ||
      SSL_SESSION_set1_master_key(session, key.bytes().data(), Secret::kBytes) != 1 ||
      SSL_SESSION_set_cipher(session, suite) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

// OpenSSL's own socket BIO raises SIGPIPE when the peer is gone, and a library must not kill its
// process. These do the same without it.
int bio_fd(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int finish_transfer(BIO* bio, ssize_t bytes, int retry) {
  BIO_clear_retry_flags(bio);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
  }
  return static_cast<int>(bytes);
}

int bio_write(BIO* bio, const char* data, int bytes) {
  const ssize_t sent = ::send(bio_fd(bio), data, static_cast<std::size_t>(bytes), MSG_NOSIGNAL);
  return finish_transfer(bio, sent, BIO_FLAGS_WRITE);
}

int bio_read(BIO* bio, char* data, int bytes) {
  const ssize_t got = ::recv(bio_fd(bio), data, static_cast<std::size_t>(bytes), 0);
  return finish_transfer(bio, got, BIO_FLAGS_READ);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* new_bio(int fd) {
  static BIO_METHOD* const kMethod = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_ctrl(method, bio_control);
    return method;
  }();
  BIO* bio = BIO_new(kMethod);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

// PEM, or a file with it. What is PEM is not named in errors: it may be a private key.
class Pem {
 public:
  explicit Pem(const std::string& text)
      : is_path_(text.find("-----BEGIN") == std::string::npos),
        name_(is_path_ ? " " + text : ""),
        bio_(is_path_ ? BIO_new_file(text.c_str(), "r")
                      : BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))) {}
  ~Pem() { BIO_free(bio_); }
  Pem(const Pem&) = delete;
  Pem& operator=(const Pem&) = delete;

  BIO* get() const { return bio_; }
  const std::string& name() const { return name_; }
  /// The next certificate, which is the caller's, or null.
  X509* certificate() const {
    return bio_ == nullptr ? nullptr : PEM_read_bio_X509_AUX(bio_, nullptr, nullptr, nullptr);
  }

 private:
  bool is_path_;
  std::string name_;
  BIO* bio_;
};

bool trust(SSL_CTX* context, const Pem& pem) {
  bool good = false;
  while (X509* authority = pem.certificate()) {
    good = X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority) == 1;
    X509_free(authority);
    if (!good) return false;
  }
  return good;
}

bool use_chain(SSL_CTX* context, const Pem& pem) {
  X509* own = pem.certificate();
  bool good = own != nullptr && SSL_CTX_use_certificate(context, own) == 1;
  X509_free(own);
  while (X509* next = good ? pem.certificate() : nullptr) {
    good = SSL_CTX_add0_chain_cert(context, next) == 1;
    if (!good) X509_free(next);
  }
  return good;
}

bool use_key(SSL_CTX* context, const Pem& pem) {
  EVP_PKEY* key = pem.get() == nullptr
                      ? nullptr
                      : PEM_read_bio_PrivateKey(pem.get(), nullptr, nullptr, nullptr);
  const bool good = key != nullptr && SSL_CTX_use_PrivateKey(context, key) == 1;
  EVP_PKEY_free(key);
  return good;
}

Status load(SSL_CTX* context, const Certificates& certificates) {
  const Pem authority(certificates.authority), own(certificates.certificate), key(certificates.key);
  if (!trust(context, authority)) {
    return tls_error("cannot read the authority's certificate" + authority.name());
  }
  if (!use_chain(context, own)) return tls_error("cannot read the certificate" + own.name());
  if (!use_key(context, key)) return tls_error("cannot use the private key" + key.name());
  ERR_clear_error();  // the end of a file is one
  return {};
}

}  // namespace

struct TlsContext::State {
  SSL_CTX* context = nullptr;
  FindKey find_key;
  Secret nobodys_key;  // random
  Credentials credentials;
  ~State() { SSL_CTX_free(context); }
};

namespace {

TlsContext::State& state_of(SSL* ssl) {
  return *static_cast<TlsContext::State*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
}

int find_session(SSL* ssl, const unsigned char* identity, std::size_t length, SSL_SESSION** out) {
  *out = nullptr;
  if (length == 0 || length > kMaxIdentity) return 1;
  const std::string name(reinterpret_cast<const char*>(identity), length);
  // Whoever is not known fails as with a wrong key: nobody learns which names there are.
  const Secret key = state_of(ssl).find_key(name).value_or(state_of(ssl).nobodys_key);
  auto* kept = static_cast<std::string*>(SSL_get_app_data(ssl));
  if (kept != nullptr) *kept = name;
  *out = session_of(ssl, key);
  return *out != nullptr ? 1 : 0;
}

int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* length,
                SSL_SESSION** out) {
  *out = nullptr;
  const Credentials& credentials = state_of(ssl).credentials;
  // A second call asks for a key of another hash; there is none.
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  *identity = reinterpret_cast<const unsigned char*>(credentials.identity.data());
  *length = credentials.identity.size();
  *out = session_of(ssl, credentials.key);
  return *out != nullptr ? 1 : 0;
}

Result<SSL_CTX*> new_context(const SSL_METHOD* method, TlsContext::State& state) {
  SSL_CTX* context = SSL_CTX_new(method);
  if (context == nullptr) return tls_error("TLS");
  state.context = context;
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384") != 1) {
    return tls_error("TLS 1.3");
  }
  SSL_CTX_set_app_data(context, &state);
  // No tickets: a resumed session would not show who it was.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

}  // namespace

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;
TlsContext::TlsContext(TlsContext&&) noexcept = default;
TlsContext& TlsContext::operator=(TlsContext&&) noexcept = default;
ssl_ctx_st* TlsContext::get() const { return state_->context; }

Result<TlsContext> TlsContext::server(FindKey find_key,
                                      const std::optional<Certificates>& certificates) {
  auto state = std::make_unique<State>();
  state->find_key = std::move(find_key);
  auto nobodys_key = random_secret();
  if (!nobodys_key) return nobodys_key.error();
  state->nobodys_key = *nobodys_key;
  auto context = new_context(TLS_server_method(), *state);
  if (!context) return context.error();
  // OpenSSL asks for this wherever peers are verified and sessions (here: keys) exist.
  constexpr unsigned char kName[] = {'a', 'd', 'd', 'e', 'n', 'd'};
  SSL_CTX_set_session_id_context(*context, kName, sizeof(kName));
  SSL_CTX_set_psk_find_session_callback(*context, find_session);
  if (certificates) ADDEND_TRY(load(*context, *certificates));
  return TlsContext(std::move(state));
}

Result<TlsContext> TlsContext::client(const Credentials& credentials, const std::string& host) {
  auto state = std::make_unique<State>();
  state->credentials = credentials;
  auto context = new_context(TLS_client_method(), *state);
  if (!context) return context.error();
  if (credentials.certificates) {
    ADDEND_TRY(load(*context, *credentials.certificates));
    // Otherwise any worker with a certificate of the same authority could pose as the server.
    X509_VERIFY_PARAM* expected = SSL_CTX_get0_param(*context);
    if (X509_VERIFY_PARAM_set1_ip_asc(expected, host.c_str()) != 1 &&
        X509_VERIFY_PARAM_set1_host(expected, host.c_str(), host.size()) != 1) {
      return tls_error("cannot check for the host " + host);
    }
    ERR_clear_error();
  } else {
    SSL_CTX_set_psk_use_session_callback(*context, use_session);
  }
  return TlsContext(std::move(state));
}

Result<TlsStream> TlsStream::create(const TlsContext& context, int fd, Side side) {
  SSL* ssl = SSL_new(context.get());
  BIO* bio = new_bio(fd);
  if (ssl == nullptr || bio == nullptr) {
    BIO_free(bio);
    SSL_free(ssl);
    return tls_error("TLS connection");
  }
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, new std::string);
  side == Side::kServer ? SSL_set_accept_state(ssl) : SSL_set_connect_state(ssl);
  return TlsStream(ssl);
}

TlsStream::TlsStream(TlsStream&& other) noexcept
    : ssl_(std::exchange(other.ssl_, nullptr)),
      problem_(std::move(other.problem_)),
      hung_up_(other.hung_up_),
      fell_silent_(other.fell_silent_) {}

TlsStream::~TlsStream() {
  if (ssl_ == nullptr) return;
  delete static_cast<std::string*>(SSL_get_app_data(ssl_));
  SSL_free(ssl_);
}

Progress TlsStream::progress_of(int result) {
  const int why = errno;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_NONE:
      return Progress::kDone;
    case SSL_ERROR_WANT_READ:
      return Progress::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return Progress::kWantWrite;
    case SSL_ERROR_ZERO_RETURN:
      return Progress::kClosed;
    default:
      const unsigned long code = ERR_peek_error();
      hung_up_ = code == 0 || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
      fell_silent_ = code == 0 && (why == ETIMEDOUT || why == EHOSTUNREACH || why == ENETUNREACH);
      problem_ = hung_up_ ? "the other end hung up" : library_error();
      ERR_clear_error();
      return Progress::kFailed;
  }
}

Progress TlsStream::handshake() {
  ERR_clear_error();
  return progress_of(SSL_do_handshake(ssl_));
}

std::string TlsStream::peer() const {
  if (SSL_is_init_finished(ssl_) == 0) return "";
  X509* certificate = SSL_get0_peer_certificate(ssl_);
  if (certificate == nullptr) return *static_cast<std::string*>(SSL_get_app_data(ssl_));
  char name[kMaxIdentity + 1] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof(name));
  return name;
}

Progress TlsStream::read(std::span<uint8_t> into, std::size_t& bytes) {
  ERR_clear_error();
  bytes = 0;
  return progress_of(SSL_read_ex(ssl_, into.data(), into.size(), &bytes));
}

Progress TlsStream::write(std::span<const uint8_t> from, std::size_t& bytes) {
  ERR_clear_error();
  bytes = 0;
  return progress_of(SSL_write_ex(ssl_, from.data(), from.size(), &bytes));
}

void TlsStream::close() {
  if (SSL_is_init_finished(ssl_) != 0) SSL_shutdown(ssl_);
}

}  // namespace addend::auth
