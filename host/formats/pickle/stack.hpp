// The stack of the pickle machine, with its marks.
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::pickle {

/// Nothing is popped from below the last mark. Its largest size is charged as long as it
/// lives. Errors: `format`.
class Stack {
 public:
  explicit Stack(MemoryBudget& budget) : memory_(budget) {}

  /// Pushes a value, or the content for one.
  template <typename Content>
  void push(Content&& content) {
    if (values_.size() == highest_) {
      highest_ += step;
      memory_.grow(step * sizeof(Value));
    }
    values_.emplace_back(std::forward<Content>(content));
  }
  void mark() {
    if (marks_.size() == most_marks_) {
      most_marks_ += step;
      memory_.grow(step * 2 * sizeof(size_t));
    }
    marks_.push_back(values_.size());
  }

  Value pop() {
    if (values_.size() <= floor()) fail(Errc::format, "the pickle takes a value, but its stack has none");
    Value value = std::move(values_.back());
    values_.pop_back();
    return value;
  }
  /// POP: the last value, or the mark if nothing is above it.
  void pop_or_unmark() {
    if (!marks_.empty() && values_.size() == marks_.back()) {
      marks_.pop_back();
    } else {
      pop();
    }
  }
  std::vector<Value> pop(size_t count) {
    std::vector<Value> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }
  std::vector<Value> pop_to_mark() {
    if (marks_.empty()) fail(Errc::format, "the pickle has no mark here");
    const auto begin = values_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<Value> items(std::make_move_iterator(begin), std::make_move_iterator(values_.end()));
    values_.erase(begin, values_.end());
    marks_.pop_back();
    return items;
  }
  [[nodiscard]] const Value& top() const {
    if (values_.size() <= floor()) fail(Errc::format, "the pickle uses a value, but its stack has none");
    return values_.back();
  }
  /// Replaces the value on top.
  void replace_top(Value value) { values_.back() = std::move(value); }
  /// All values, regardless of marks.
  [[nodiscard]] const std::vector<Value>& values() const { return values_; }

 private:
  [[nodiscard]] size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  static constexpr size_t step = 1024;

  MemoryLoan memory_;
  std::vector<Value> values_;
  size_t highest_ = 0;         // that is charged
  std::vector<size_t> marks_;  // heights
  size_t most_marks_ = 0;
};

}  // namespace cbk::pickle
