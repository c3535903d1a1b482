// SHA-256, by OpenSSL, which is loaded on first use.
#pragma once

#include <memory>
#include <string>

#include "host/base/digest.hpp"

namespace cbk {

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
std::string sha256(ByteView bytes);

}  // namespace cbk
