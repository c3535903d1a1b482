// The messages between cbk and cbk-hdf5 over a socket: one request, one reply. Both run on one machine, so
// numbers are in its byte order.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cbk::hdf5::library {

/// Descriptors that the child starts with.
constexpr int socket_fd = 0;
constexpr int checkpoint_fd = 3;

/// The largest reply.
constexpr uint64_t max_reply = uint64_t{2} << 20;
/// The data limit of the child for a file, passed as its first argument.
constexpr uint64_t memory_for(uint64_t file_size) {
  constexpr uint64_t fixed = uint64_t{28} << 20;
  constexpr uint64_t per_byte = 2;
  constexpr uint64_t most = uint64_t{1} << 30;
  return file_size > most ? most : std::min(most, fixed + per_byte * file_size);
}
/// A chunk is in memory several times while it is unpacked: in the cache the previous one, and the output of
/// each filter, of which the first may take twice its size.
constexpr uint64_t copies_of_chunk = 8;
/// Chunks that the library keeps unpacked. A chunk must fit, or it is unpacked for every reply.
constexpr uint64_t chunk_cache(uint64_t memory) {
  return (memory - 2 * max_reply) / copies_of_chunk;
}

/// The request: only whether the dataset can be read, elements, or how many bytes the file stores for it, a
/// uint64_t.
enum class Ask : uint32_t { probe, elements, stored_size };
/// The form of the returned elements.
enum class As : uint32_t { stored, integer, unsigned_integer, real };

struct Request {
  uint64_t address = 0;  // of the dataset's object header
  uint64_t first = 0;    // element, in C order
  uint64_t count = 0;
  Ask ask = Ask::probe;
  As as = As::stored;
  uint32_t size = 0;     // bytes of an element in the reply
  uint32_t is_anew = 0;  // what was read before counts as new bytes again
};

/// `reading`: not a reply yet; new bytes of the file were read.
enum class Status : uint32_t { ok, unsupported, damaged, reading };

/// Precedes `size` bytes: the elements, or the error.
struct Reply {
  Status status = Status::ok;
  uint32_t size = 0;
};

}  // namespace cbk::hdf5::library
