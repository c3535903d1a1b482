// Deflated bytes read from front to back: in a window of memory, however large the result is.
#pragma once

#include <memory>

#include "host/base/bytes.hpp"

namespace cbk {

enum class Deflated { raw, zlib };  // as zip archives and HDF5 chunks hold it

/// The packed bytes must outlive it. For one thread at a time.
class InflateStream {
 public:
  InflateStream(ByteView packed, Deflated form);
  /// Fills `out`; fewer bytes only at the end. Errors: `format`.
  size_t read(std::span<std::byte> out);
  /// Bytes read so far.
  [[nodiscard]] uint64_t position() const { return position_; }

 private:
  struct State;
  struct Free {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Free> state_;
  ByteView rest_;
  uint64_t position_ = 0;
};

}  // namespace cbk
