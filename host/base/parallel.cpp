#include "host/base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "host/base/error.hpp"

namespace cbk {
namespace {

/// Threads that wait for a job, and share its tasks by a counter.
class Pool {
 public:
  explicit Pool(int workers) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { serve(); });
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(int64_t count, const std::function<void(int64_t)>& task) {
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      count_ = count;
      next_ = 0;
      busy_ = static_cast<int>(threads_.size());
      failure_ = nullptr;
      failed_ = count;
      ++job_;
    }
    wake_.notify_all();
    take_tasks();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    task_ = nullptr;
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void take_tasks() {
    for (int64_t i = next_++; i < count_; i = next_++) {
      try {
        (*task_)(i);
      } catch (...) {
        next_ = count_;
        const std::lock_guard lock(mutex_);
        if (i >= failed_) continue;
        failed_ = i;
        failure_ = std::current_exception();
      }
    }
  }

  void serve() {
    uint64_t seen = 0;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return ends_ || job_ != seen; });
        if (ends_) return;
        seen = job_;
      }
      take_tasks();
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  int busy_ = 0;
  uint64_t job_ = 0;
  bool ends_ = false;
  std::exception_ptr failure_;
  int64_t failed_ = 0;  // the task that failure_ is of
};

std::atomic<int> wanted_threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 256U));
std::unique_ptr<Pool> pool;  // made when it is first needed
std::mutex pool_in_use;      // it has one job at a time
thread_local bool is_inside = false;

}  // namespace

int thread_count() {
  return wanted_threads;
}

void set_thread_count(int count) {
  if (count < 1 || count > 256) fail(Errc::value, "number of threads: expected 1 to 256, found {}", count);
  const std::lock_guard lock(pool_in_use);
  wanted_threads = count;
  pool.reset();
}

void parallel_for(int64_t count, const std::function<void(int64_t)>& task) {
  // A task that calls this function runs its own tasks alone; so does a thread while another one uses the
  // pool.
  std::unique_lock lock(pool_in_use, std::defer_lock);
  if (count <= 1 || wanted_threads == 1 || is_inside || !lock.try_lock()) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  if (!pool) pool = std::make_unique<Pool>(wanted_threads - 1);
  pool->run(count, [&task](int64_t i) {
    const struct Inside {
      Inside() { is_inside = true; }
      ~Inside() { is_inside = false; }
    } inside;
    task(i);
  });
}

}  // namespace cbk
