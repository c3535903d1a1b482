// BLAKE3, for digests of what is written: several times as fast as SHA-256.
#pragma once

#include <blake3.h>

#include "host/base/digest.hpp"

namespace cbk {

/// Bytes that come one after the other. Not thread-safe.
class Blake3 {
 public:
  Blake3() { blake3_hasher_init(&hasher_); }
  void add(ByteView bytes) { blake3_hasher_update(&hasher_, bytes.data(), bytes.size()); }
  /// Of all bytes so far.
  [[nodiscard]] Digest digest() const {
    Digest out;
    blake3_hasher_finalize(&hasher_, reinterpret_cast<uint8_t*>(out.data()), out.size());
    return out;
  }

 private:
  blake3_hasher hasher_;
};

}  // namespace cbk
