// What carries messages between the processes of a team: the one function of libcbk-openmpi.so and
// libcbk-mpich.so, which are loaded by their names.
#pragma once

#include <cstddef>

namespace cbk {

/// All functions are called from one thread, the one that opened it.
struct Transport {
  int rank = 0;
  int size = 1;
  /// Sends a copy of the bytes; does not wait until they have arrived. Messages from one process to another
  /// arrive in their order.
  void (*send)(int to, const void* bytes, size_t size) = nullptr;
  /// The next message, if there is one: its sender and size.
  bool (*probe)(int& from, size_t& size) = nullptr;
  /// The message that `probe` found.
  void (*receive)(int from, void* bytes, size_t size) = nullptr;
  /// Ends the connection. All processes call it, after their last message.
  void (*close)() = nullptr;
};

}  // namespace cbk

/// nullptr: it cannot start.
extern "C" const cbk::Transport* cbk_transport_open();
