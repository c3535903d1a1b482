#include "host/base/sha256.hpp"

#include <openssl/evp.h>

#include "host/base/error.hpp"
#include "host/base/shared_library.hpp"

namespace cbk {
namespace {

struct DigestLibrary {
  decltype(&EVP_MD_CTX_new) make;
  decltype(&EVP_MD_CTX_free) free;
  decltype(&EVP_sha256) sha256;
  decltype(&EVP_DigestInit_ex) begin;
  decltype(&EVP_DigestUpdate) update;
  decltype(&EVP_DigestFinal_ex) end;
};

const DigestLibrary& digest_library() {
  static const DigestLibrary library = [] {
    const SharedLibrary crypto("libcrypto.so.3", "a SHA-256 digest");
    return DigestLibrary{crypto.function<decltype(EVP_MD_CTX_new)>("EVP_MD_CTX_new"),
                         crypto.function<decltype(EVP_MD_CTX_free)>("EVP_MD_CTX_free"),
                         crypto.function<decltype(EVP_sha256)>("EVP_sha256"),
                         crypto.function<decltype(EVP_DigestInit_ex)>("EVP_DigestInit_ex"),
                         crypto.function<decltype(EVP_DigestUpdate)>("EVP_DigestUpdate"),
                         crypto.function<decltype(EVP_DigestFinal_ex)>("EVP_DigestFinal_ex")};
  }();
  return library;
}

void free_context(void* context) {
  digest_library().free(static_cast<EVP_MD_CTX*>(context));
}

}  // namespace

Sha256::Sha256() : context_(digest_library().make(), free_context) {
  const DigestLibrary& library = digest_library();
  if (!context_ || library.begin(static_cast<EVP_MD_CTX*>(context_.get()), library.sha256(), nullptr) != 1)
    fail(Errc::internal, "SHA-256 is not available");
}

void Sha256::add(ByteView bytes) {
  digest_library().update(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size());
}

Digest Sha256::digest() {
  Digest out;
  digest_library().end(static_cast<EVP_MD_CTX*>(context_.get()), reinterpret_cast<unsigned char*>(out.data()),
                       nullptr);
  return out;
}

std::string sha256(ByteView bytes) {
  Sha256 digest;
  digest.add(bytes);
  return to_hex(digest.digest());
}

}  // namespace cbk
