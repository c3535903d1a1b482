/* What carries messages between the processes of a team: the functions of libcbk-openmpi.so and libcbk-mpich.so. C, as the module is
 * loaded by its name. All are called from one thread, the one that called cbk_transport_open. */
#ifndef CBK_TRANSPORT_H
#define CBK_TRANSPORT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cbk_transport {
  int rank;
  int size;
  /* Sends a copy of the bytes; does not wait until they have arrived. Messages from one process to another
   * arrive in their order. */
  void (*send)(int to, const void* bytes, size_t size);
  /* The next message, if there is one: its sender and size. 0: there is none. */
  int (*probe)(int* from, size_t* size);
  /* The message that `probe` found. */
  void (*receive)(int from, void* bytes, size_t size);
  /* Ends the connection. All processes call it, after their last message. */
  void (*close)(void);
};

/* NULL: it cannot start. */
const struct cbk_transport* cbk_transport_open(void);

#ifdef __cplusplus
}
#endif

#endif
