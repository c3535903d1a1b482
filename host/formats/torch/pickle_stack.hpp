// The stack of the pickle machine, with its marks.
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "host/value/value.hpp"

namespace cbk::torch {

/// Nothing is taken from below the last mark. Errors: `format`.
class PickleStack {
 public:
  /// A value, or what one can be made of.
  template <typename Content>
  void push(Content&& content) {
    values_.emplace_back(std::forward<Content>(content));
  }
  void mark() { marks_.push_back(values_.size()); }

  Value pop() {
    if (values_.size() <= floor()) fail(Errc::format, "the pickle takes a value that is not there");
    Value value = std::move(values_.back());
    values_.pop_back();
    return value;
  }
  /// POP: the last value, or the mark if nothing stands above it.
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
    if (values_.size() <= floor()) fail(Errc::format, "the pickle uses a value that is not there");
    return values_.back();
  }
  /// The value on top becomes another one.
  void replace_top(Value value) { values_.back() = std::move(value); }
  /// All values, whatever the marks say.
  [[nodiscard]] const std::vector<Value>& values() const { return values_; }

 private:
  [[nodiscard]] size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<Value> values_;
  std::vector<size_t> marks_;  // heights
};

}  // namespace cbk::torch
