#include "host/base/memory_budget.hpp"

#include <algorithm>

#include "host/base/bytes.hpp"

namespace cbk {

namespace {

constexpr uint64_t fixed = 40ULL << 20;
constexpr uint64_t per_byte = 3;

}  // namespace

uint64_t MemoryBudget::limit() const {
  return fixed + per_byte * files_;
}

uint64_t MemoryBudget::left() const {
  const uint64_t limit = this->limit();
  return limit - std::min<uint64_t>(limit, spent_);
}

void MemoryBudget::charge(uint64_t bytes) {
  const uint64_t limit = this->limit();
  uint64_t spent = spent_;
  do {
    if (spent > limit || bytes > limit - spent) fail_beyond();
  } while (!spent_.compare_exchange_weak(spent, spent + bytes));
}

void MemoryBudget::fail_beyond() const {
  throw Error(
      Errc::format,
      {.problem = fmt::format("the content of {} would take more than {} of memory, the limit for its size",
                              format_size(files_), format_size(limit())),
       .advice = "keep long lists of numbers and many tiny tensors as one tensor, and archives without "
                 "compression"});
}

}  // namespace cbk
