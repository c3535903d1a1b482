// libcbk-openmpi.so, libcbk-mpich.so: messages between the ranks of MPI. The only file that knows MPI; cbk
// loads it when a launcher started it (host/base/team.cpp).
#include "host/base/transport.hpp"

#include <mpi.h>

#include <list>
#include <utility>

namespace {

/// The world's communicator has messages of MPI programs that a script may load; ours are apart.
MPI_Comm ours = MPI_COMM_NULL;

struct Sending {
  std::string bytes;
  MPI_Request request = MPI_REQUEST_NULL;
};
std::list<Sending> sending;  // until MPI does not need the bytes any more

void drop_sent() {
  sending.remove_if([](Sending& one) {
    int is_done = 0;
    MPI_Test(&one.request, &is_done, MPI_STATUS_IGNORE);
    return is_done != 0;
  });
}

void send(int to, int kind, std::string bytes) {
  sending.push_back({std::move(bytes)});
  Sending& one = sending.back();
  MPI_Isend(one.bytes.data(), static_cast<int>(one.bytes.size()), MPI_BYTE, to, kind, ours, &one.request);
}  // NOLINT(*MPI-Checker): `drop_sent` and `close` complete it

std::optional<cbk::Message> receive() {
  drop_sent();
  int is_there = 0;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ours, &is_there, &status);
  if (is_there == 0) return std::nullopt;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  cbk::Message out{status.MPI_SOURCE, status.MPI_TAG, std::string(static_cast<size_t>(count), '\0')};
  MPI_Recv(out.bytes.data(), count, MPI_BYTE, out.from, out.kind, ours, MPI_STATUS_IGNORE);
  return out;
}

void close() {
  for (Sending& one : sending) MPI_Wait(&one.request, MPI_STATUS_IGNORE);  // NOLINT(*MPI-Checker)
  sending.clear();
  MPI_Comm_free(&ours);
  MPI_Finalize();
}

cbk::Transport all;

}  // namespace

const cbk::Transport* cbk_transport_open() {
  int given = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS) return nullptr;
  MPI_Comm_dup(MPI_COMM_WORLD, &ours);
  MPI_Comm_rank(ours, &all.rank);
  MPI_Comm_size(ours, &all.size);
  all.send = send;
  all.receive = receive;
  all.close = close;
  return &all;
}
