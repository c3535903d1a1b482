// What carries messages between the processes of a team: the one function of libcbk-openmpi.so and
// libcbk-mpich.so, which are loaded by their names.
#pragma once

#include <optional>
#include <string>

namespace cbk {

struct Message {
  int from = 0;
  int kind = 0;
  std::string bytes;
};

/// All functions are called from one thread, the one that opened it.
struct Transport {
  int rank = 0;
  int size = 1;
  /// Does not wait until the bytes have arrived. Messages from one process to another arrive in their order.
  void (*send)(int to, int kind, std::string bytes) = nullptr;
  /// The next message, if there is one.
  std::optional<Message> (*receive)() = nullptr;
  /// Ends the connection. All processes call it, after their last message.
  void (*close)() = nullptr;
};

}  // namespace cbk

/// nullptr: it cannot start.
extern "C" const cbk::Transport* cbk_transport_open();
