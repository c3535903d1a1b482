#include "host/streaming/lost.hpp"

#include "host/base/error.hpp"

namespace cbk {
namespace {

std::string tensors(size_t count) {
  return count == 1 ? "1 tensor" : fmt::format("{} tensors", count);
}

/// "'a' (3 of 12 values overflow float16), 'b' (1 of 3 values changes in int8)"
std::vector<std::string> grave_losses(const std::vector<LostValues>& lost) {
  std::vector<std::string> out;
  for (const auto& [key, dtype, numel, losses] : lost) {
    if (!losses.are_grave()) continue;
    const std::string_view what = is_integer(dtype) ? "are not exact in" : "overflow";
    out.push_back(fmt::format("{} ({} of {} values {} {})", quote(key, 60),
                              losses.overflowed + losses.changed, numel, what, name_of(dtype)));
  }
  return out;
}

constexpr size_t listed_tensors = 4;  // so that the advice after them is not cut off

}  // namespace

void refuse_losses(const std::vector<LostValues>& lost) {
  const std::vector<std::string> grave = grave_losses(lost);
  if (grave.empty()) return;
  fail(Errc::value,
       "cannot keep the values of {}: {}; choose another dtype, or write them nevertheless with "
       "--allow-overflow "
       "(in Lua: allow_overflow = true)",
       tensors(grave.size()), listed(grave, listed_tensors));
}

std::vector<std::string> warnings_of(const std::vector<LostValues>& lost) {
  std::vector<std::string> out;
  if (const auto grave = grave_losses(lost); !grave.empty()) {
    out.push_back(fmt::format("{} cannot keep all values: {}; they are written as the dtype has them",
                              tensors(grave.size()), listed(grave, listed_tensors)));
  }
  std::vector<std::string> vanished;
  for (const auto& [key, dtype, numel, losses] : lost) {
    if (losses.vanished == 0) continue;
    vanished.push_back(
        fmt::format("{} ({} of {} in {})", quote(key, 60), losses.vanished, numel, name_of(dtype)));
  }
  if (!vanished.empty()) {
    out.push_back(fmt::format("small values of {} became 0: {}", tensors(vanished.size()),
                              listed(vanished, listed_tensors)));
  }
  return out;
}

}  // namespace cbk
