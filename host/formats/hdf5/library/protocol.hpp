// What cbk and cbk-hdf5 say to each other over a socket: one request, one reply. Both run on one machine, so
// numbers are in its order.
#pragma once

#include <cstdint>

namespace cbk::hdf5::library {

/// Descriptors that the child starts with.
constexpr int socket_fd = 0;
constexpr int checkpoint_fd = 3;

/// The child's address space.
constexpr uint64_t memory_limit = uint64_t{1} << 30;
/// Chunks that the library keeps unpacked.
constexpr uint64_t chunk_cache = uint64_t{64} << 20;
/// The most that one reply holds.
constexpr uint64_t max_reply = uint64_t{8} << 20;

/// How the elements shall come.
enum class As : uint32_t { stored, integer, unsigned_integer, real };

struct Request {
  uint64_t address = 0;  // of the dataset's object header
  uint64_t first = 0;    // element, in C order
  uint64_t count = 0;    // 0: only whether the dataset can be read
  As as = As::stored;
  uint32_t size = 0;  // bytes of an element in the reply
};

enum class Status : uint32_t { ok, unsupported, damaged };

/// Before `size` bytes: the elements, or why not.
struct Reply {
  Status status = Status::ok;
  uint32_t size = 0;
};

}  // namespace cbk::hdf5::library
