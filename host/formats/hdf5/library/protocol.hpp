// What cbk and cbk-hdf5 say to each other over a socket: one request, one reply. Both run on one machine, so
// numbers are in its order.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cbk::hdf5::library {

/// Descriptors that the child starts with.
constexpr int socket_fd = 0;
constexpr int checkpoint_fd = 3;

/// The most that one reply holds.
constexpr uint64_t max_reply = uint64_t{2} << 20;
/// The data that the child may have for a file: it is given as its first argument.
constexpr uint64_t memory_for(uint64_t file_size) {
  constexpr uint64_t fixed = uint64_t{28} << 20;
  constexpr uint64_t per_byte = 2;
  constexpr uint64_t most = uint64_t{1} << 30;
  return file_size > most ? most : std::min(most, fixed + per_byte * file_size);
}
/// A chunk is there several times while it is unpacked: in the cache the one before, and what each filter
/// makes of it, of which the first may take twice its size.
constexpr uint64_t copies_of_chunk = 8;
/// Chunks that the library keeps unpacked. A chunk must fit: else it is unpacked for every reply.
constexpr uint64_t chunk_cache(uint64_t memory) {
  return (memory - 2 * max_reply) / copies_of_chunk;
}

/// What is asked: nothing but whether the dataset can be read, elements, or how many bytes the file has of
/// it, a uint64_t.
enum class Ask : uint32_t { probe, elements, stored_size };
/// How the elements shall come.
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

/// `reading`: not the reply yet, but new bytes of the file were read.
enum class Status : uint32_t { ok, unsupported, damaged, reading };

/// Before `size` bytes: the elements, or why not.
struct Reply {
  Status status = Status::ok;
  uint32_t size = 0;
};

}  // namespace cbk::hdf5::library
