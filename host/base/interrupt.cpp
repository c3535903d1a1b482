#include "host/base/interrupt.hpp"

#include <atomic>

#include "host/base/error.hpp"

namespace cbk {
namespace {
std::atomic<bool> pending{false};
std::atomic<int> gentle_ends{0};
}  // namespace

void request_interrupt() noexcept {
  pending.store(true, std::memory_order_relaxed);
}
void clear_interrupt() noexcept {
  pending.store(false, std::memory_order_relaxed);
}
bool interrupt_requested() noexcept {
  return pending.load(std::memory_order_relaxed);
}

void check_interrupt() {
  if (interrupt_requested()) fail(Errc::interrupted, "interrupted");
}

GentleEnd::GentleEnd() noexcept {
  ++gentle_ends;
}

GentleEnd::~GentleEnd() {
  --gentle_ends;
}

bool ends_gently() noexcept {
  return gentle_ends.load() > 0;
}

}  // namespace cbk
