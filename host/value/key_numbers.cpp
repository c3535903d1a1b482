#include "host/value/key_numbers.hpp"

#include <algorithm>

#include "host/base/digits.hpp"

namespace cbk {
namespace {

constexpr size_t most_digits = 9;

}  // namespace

KeyNumbers::KeyNumbers(std::string_view key)
    : key_(key), is_tensorflow_(key.find('/') != std::string_view::npos) {}

std::optional<std::pair<size_t, size_t>> KeyNumbers::next() {
  const char separator = is_tensorflow_ ? '/' : '.';
  while (from_ <= key_.size()) {
    const size_t end = std::min(key_.find(separator, from_), key_.size());
    size_t begin = end;
    while (begin > from_ && is_digit(key_[begin - 1])) --begin;
    const bool is_apart = begin == from_ || key_[begin - 1] == '_';
    from_ = end + 1;
    if (begin < end && end - begin <= most_digits && (is_tensorflow_ || is_apart))
      return std::pair{begin, end};
  }
  return std::nullopt;
}

}  // namespace cbk
