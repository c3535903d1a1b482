// Repeated keys of a text. The first ones are reported with their places, the others only by their number: a
// text may consist of nothing else.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>

namespace cbk {

class RepeatedKeys {
 public:
  /// `report` must outlive this; an empty one reports nothing.
  explicit RepeatedKeys(const std::function<void(std::string)>& report) : report_(report) {}

  /// `message` is called only for reported keys; it may be slow.
  template <typename Message>
  void add(Message&& message) {
    if (report_ && ++count_ <= most) report_(message());
  }

  /// Call this at the end of the text.
  void finish() const {
    if (count_ > most) report_(fmt::format("{} more keys are repeated", count_ - most));
  }

 private:
  static constexpr size_t most = 20;
  const std::function<void(std::string)>& report_;
  size_t count_ = 0;
};

}  // namespace cbk
