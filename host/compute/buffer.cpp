#include "host/compute/buffer.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"

namespace cbk::compute {
namespace {

std::atomic<uint64_t> live_bytes{0};
std::atomic<uint64_t> allocations{0};

constexpr uint64_t huge_page = 2 << 20;
constexpr uint64_t address_space = 1ULL << 47;

/// The size in whole huge pages, if that adds at most an eighth; otherwise the rest is small pages.
uint64_t whole_pages(uint64_t size) {
  const uint64_t rounded = (size + huge_page - 1) / huge_page * huge_page;
  return rounded - size <= size / 8 ? rounded : size;
}

/// Requests huge pages for large memory.
std::byte* take(uint64_t size) {
  const bool is_large = size >= huge_page;
  const uint64_t taken = is_large ? whole_pages(size) : size;
  void* memory = nullptr;
  const bool is_there =
      size < address_space && ::posix_memalign(&memory, is_large ? huge_page : buffer_alignment, taken) == 0;
  if (!is_there) fail(Errc::unsupported, "there is no memory for a tensor of {}", format_size(size));
  if (is_large) ::madvise(memory, taken, MADV_HUGEPAGE);  // a wish: without it all is the same but slower
  live_bytes += size;
  ++allocations;
  return static_cast<std::byte*>(memory);
}

void give_back(std::byte* memory, uint64_t size) {
  live_bytes -= size;
  std::free(memory);
}

}  // namespace

Buffer::Buffer(uint64_t size, uint64_t program) : size_(size), program_(program) {
  if (program == 0 && size > 0) memory_ = take(size);
}

Buffer::~Buffer() {
  if (program_ == 0 && memory_ != nullptr) give_back(memory_, size_);
}

std::shared_ptr<Buffer> Buffer::allocate(uint64_t size) {
  return std::shared_ptr<Buffer>(new Buffer(size, 0));
}

std::shared_ptr<Buffer> Buffer::planned(uint64_t size, uint64_t program) {
  return std::shared_ptr<Buffer>(new Buffer(size, program));
}

void Buffer::place(std::shared_ptr<std::byte> arena, uint64_t offset) {
  memory_ = arena.get() + offset;
  arena_ = std::move(arena);
}

void Buffer::displace() {
  memory_ = nullptr;
  arena_.reset();
}

Buffer::Count Buffer::count() {
  return {live_bytes.load(), allocations.load()};
}

void fail_without_values() {
  fail(Errc::refused,
       "this tensor's value is gone: it was made inside of a step or a formula, which has ended. Return it "
       "from the step, pass it to a "
       "function made with cstorch.step_closure, or copy it into a tensor that exists before");
}

std::shared_ptr<std::byte> allocate_arena(uint64_t size) {
  if (size == 0) return {};
  return {take(size), [size](std::byte* memory) { give_back(memory, size); }};
}

}  // namespace cbk::compute
