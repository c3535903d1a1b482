// Ctrl-C as a flag. The signal handler of host/app sets it; long-running work polls it between blocks.
#pragma once

namespace cbk {

void request_interrupt() noexcept;  // async-signal-safe
void clear_interrupt() noexcept;
bool interrupt_requested() noexcept;

/// While one lives, SIGTERM is an interrupt, too: work that can be continued notes how far it is. Otherwise
/// it ends the program at once.
class GentleEnd {
 public:
  GentleEnd() noexcept;
  GentleEnd(const GentleEnd&) = delete;
  GentleEnd& operator=(const GentleEnd&) = delete;
  ~GentleEnd();
};
bool ends_gently() noexcept;  // async-signal-safe

/// Throws an Error with Errc::interrupted when an interrupt is pending.
void check_interrupt();

}  // namespace cbk
