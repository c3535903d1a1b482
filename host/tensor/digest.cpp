#include "host/tensor/digest.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "host/base/interrupt.hpp"

namespace cbk {

std::string sha256(const Tensor& tensor) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    fail(Errc::internal, "SHA-256 is not available");
  }
  constexpr int64_t block_bytes = 1 << 20;
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  const int64_t step = block_bytes / itemsize;
  Bytes buffer(static_cast<size_t>(std::min(step, tensor.numel()) * itemsize));
  for (int64_t begin = 0; begin < tensor.numel(); begin += step) {
    check_interrupt();
    const int64_t count = std::min(step, tensor.numel() - begin);
    const std::span<std::byte> block(buffer.data(), static_cast<size_t>(count * itemsize));
    tensor.read(begin, block);
    EVP_DigestUpdate(context.get(), block.data(), block.size());
  }
  Bytes digest(32);
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
  return to_hex(digest);
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
