#include "host/tensor/digest.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "host/base/interrupt.hpp"
#include "host/base/shared_library.hpp"

namespace cbk {

namespace {

/// The elements in C order, block by block.
template <typename Visit>
void each_block(const Tensor& tensor, Visit visit) {
  constexpr int64_t block_bytes = 1 << 20;
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  const int64_t step = block_bytes / itemsize;
  Bytes buffer(static_cast<size_t>(std::min(step, tensor.numel()) * itemsize));
  for (int64_t begin = 0; begin < tensor.numel(); begin += step) {
    check_interrupt();
    const int64_t count = std::min(step, tensor.numel() - begin);
    const std::span<std::byte> block(buffer.data(), static_cast<size_t>(count * itemsize));
    tensor.read(begin, block);
    visit(block);
  }
}

/// The finalizer of splitmix64.
uint64_t mixed(uint64_t bits) {
  bits += 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

template <size_t size>
uint64_t sum_of_hashes(ByteView block) {
  uint64_t out = 0;
  for (size_t at = 0; at < block.size(); at += size) {
    uint64_t low = 0;
    uint64_t high = 0;
    std::memcpy(&low, block.data() + at, std::min<size_t>(size, 8));
    if constexpr (size == 16) std::memcpy(&high, block.data() + at + 8, 8);
    out += size == 16 ? mixed(mixed(low) ^ high) : mixed(low);
  }
  return out;
}

uint64_t sum_of_hashes(ByteView block, size_t itemsize) {
  switch (itemsize) {
    case 1:
      return sum_of_hashes<1>(block);
    case 2:
      return sum_of_hashes<2>(block);
    case 4:
      return sum_of_hashes<4>(block);
    case 8:
      return sum_of_hashes<8>(block);
    default:
      return sum_of_hashes<16>(block);
  }
}

/// OpenSSL.
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

}  // namespace

std::string sha256(const Tensor& tensor) {
  const DigestLibrary& library = digest_library();
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(library.make(), library.free);
  if (!context || library.begin(context.get(), library.sha256(), nullptr) != 1) {
    fail(Errc::internal, "SHA-256 is not available");
  }
  each_block(tensor, [&](ByteView block) { library.update(context.get(), block.data(), block.size()); });
  Bytes digest(32);
  library.end(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return to_hex(digest);
}

uint64_t content(const Tensor& tensor) {
  uint64_t out = 0;
  each_block(tensor, [&](ByteView block) { out += sum_of_hashes(block, size_of(tensor.dtype())); });
  return out;
}

std::string to_hex(ByteView bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    out += digits[std::to_integer<size_t>(byte) >> 4];
    out += digits[std::to_integer<size_t>(byte) & 15];
  }
  return out;
}

}  // namespace cbk
