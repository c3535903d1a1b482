#include "host/tensor/framed.hpp"

#include <cerrno>
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/tensor/blocks.hpp"

namespace cbk {
namespace {

void write_block(ByteView block, std::FILE* stream) {
  std::fprintf(stream, "{\"bytes\":%zu}\n", block.size());
  if (std::fwrite(block.data(), 1, block.size(), stream) != block.size())
    fail(Errc::io, "cannot write elements to the output: {}", std::strerror(errno));
}

}  // namespace

void write_framed(const Tensor& tensor, std::FILE* stream) {
  const Blocks blocks({&tensor});
  const size_t size = size_of(tensor.dtype());
  Bytes buffer;
  for (int64_t part = 0; part < blocks.parts(); ++part) {
    blocks.each(part, [&](int64_t begin, int64_t end) {
      check_interrupt();
      buffer.resize(static_cast<size_t>(end - begin) * size);
      tensor.read(begin, buffer);
      write_block(buffer, stream);
    });
    drop_sources(
        *tensor.expression());  // scattered elements are read in a mapping, which would fill the memory
  }
  verify_read(*tensor.expression());
}

std::optional<Storage::FileRange> file_range(const Tensor& tensor) {
  const View* view = tensor.view();
  if (view == nullptr || view->strides != contiguous_strides(view->shape)) return std::nullopt;
  auto range = view->storage->file_range();
  if (range) range->offset += static_cast<uint64_t>(view->offset) * size_of(view->dtype);
  return range;
}

}  // namespace cbk
