// Ctrl-C as a flag. The signal handler of host/app sets it; long-running work polls it between blocks.
#pragma once

namespace cbk {

void request_interrupt() noexcept;  // async-signal-safe
void clear_interrupt() noexcept;
bool interrupt_requested() noexcept;

/// Throws an Error with Errc::interrupted when an interrupt is pending.
void check_interrupt();

}  // namespace cbk
