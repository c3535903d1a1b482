// Limits the memory of a tree made from a text, so that a short text cannot demand much.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "host/base/error.hpp"
#include "host/value/value.hpp"

namespace cbk {

/// A share for every text, and more for each byte of it. Readers charge the memory that they keep. Not
/// thread-safe.
class TreeMemory {
 public:
  // The memory of a tree for each item, including free space in its containers.
  static constexpr uint64_t item = 2 * sizeof(Value);
  static constexpr uint64_t entry = 2 * (sizeof(Dict::Entry) + sizeof(uint64_t));
  static constexpr uint64_t container = sizeof(Dict) + sizeof(Value);
  /// The memory of `text` besides the Value or std::string that contains it.
  static uint64_t beside(std::string_view text) {
    return text.size() >= sizeof(std::string) / 2 ? text.size() + sizeof(std::string) : 0;
  }

  /// `text_size`: of the text; `file_size`: of the file that contains it, if that is larger.
  explicit TreeMemory(uint64_t text_size, uint64_t file_size = 0)
      : text_size_(text_size), limit_((32ULL << 20) + 3 * std::max(text_size, file_size)) {}

  /// Errors: `format`, without a place.
  void charge(uint64_t bytes) {
    spent_ += bytes;
    if (spent_ <= limit_) return;
    fail(Errc::format, "the text up to here needs more than {} of memory, which is too much for {} of text",
         format_size(limit_), format_size(text_size_));
  }
  void refund(uint64_t bytes) { spent_ -= bytes; }
  [[nodiscard]] uint64_t spent() const { return spent_; }

 private:
  uint64_t text_size_;
  uint64_t limit_;
  uint64_t spent_ = 0;
};

}  // namespace cbk
