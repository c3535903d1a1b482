// Work on several threads. Tasks are cut by the shape of the work, never by the number of threads, so that
// results have the same bits for any number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace cbk {

/// Threads that work, the caller's included. At first as many as the machine has cores.
int thread_count();
/// From 1 to 256. Not while work is running.
void set_thread_count(int count);

/// Calls `task(i)` for every i in [0, count), on several threads if there is more than one task. If a task
/// throws, no further task begins, and the exception of the lowest i is thrown here, as with one thread.
/// Several threads may call it; only one of them gets help.
void parallel_for(int64_t count, const std::function<void(int64_t)>& task);

}  // namespace cbk
