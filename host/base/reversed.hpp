// A list from its last element to the first, for `for`. As std::views::reverse, which clang's tools cannot
// read in GCC 12's headers.
//
// Borrows the list. Any thread.
#pragma once

namespace cbk {

template <typename List>
class Reversed {
 public:
  explicit Reversed(const List& list) : list_(list) {}
  [[nodiscard]] auto begin() const { return list_.rbegin(); }
  [[nodiscard]] auto end() const { return list_.rend(); }

 private:
  const List& list_;
};

}  // namespace cbk
