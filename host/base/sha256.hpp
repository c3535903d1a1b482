// SHA-256, by OpenSSL, which is loaded on first use.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "host/base/bytes.hpp"

namespace cbk {

using Digest = std::array<std::byte, 32>;

/// Bytes that come one after the other. Not thread-safe.
class Sha256 {
 public:
  /// Errors: `unsupported` if the library is missing.
  Sha256();
  void add(ByteView bytes);
  /// Of all bytes so far. Then nothing more can be added.
  [[nodiscard]] Digest digest();

 private:
  std::unique_ptr<void, void (*)(void*)> context_;
};

/// In lower-case hex.
std::string to_hex(ByteView bytes);
std::string sha256(ByteView bytes);

}  // namespace cbk
