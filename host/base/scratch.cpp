#include "host/base/scratch.hpp"

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "host/base/bytes.hpp"

namespace cbk {
namespace {

struct Free {
  void operator()(std::byte* data) const noexcept { std::free(data); }
};

struct Block {
  std::unique_ptr<std::byte, Free> data;
  size_t capacity = 0;
};

// Nested expressions need many blocks, of which those of computed elements are small.
constexpr size_t kept_blocks = 16;
constexpr size_t kept_large = 4;
constexpr size_t kept_bytes = 8U << 20;
thread_local std::vector<Block> idle;

bool is_too_much() {
  size_t bytes = 0;
  for (const Block& block : idle) bytes += block.capacity;
  return idle.size() > kept_blocks || (idle.size() > kept_large && bytes > kept_bytes);
}

}  // namespace

Scratch::Scratch(size_t size) : size_(size) {
  for (size_t i = idle.size(); i-- > 0;) {
    if (idle[i].capacity >= size && idle[i].capacity / 4 <= size + 65536) {
      data_ = idle[i].data.release();
      capacity_ = idle[i].capacity;
      idle.erase(idle.begin() + static_cast<ptrdiff_t>(i));
      return;
    }
  }
  capacity_ = align_up(size + 1, 4096);
  data_ = static_cast<std::byte*>(std::aligned_alloc(4096, capacity_));
  if (data_ == nullptr) throw std::bad_alloc();
}

Scratch::~Scratch() {
  idle.push_back({std::unique_ptr<std::byte, Free>(data_), capacity_});
  while (is_too_much()) idle.erase(idle.begin());
}

void release_scratch() noexcept {
  idle.clear();
}

}  // namespace cbk
