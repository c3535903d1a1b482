// NumPy's array files: whatever opens must be readable to the last byte, and its header be written and read
// again; the rest must be an Error. What an input that begins with 0 has behind it are the version, the size
// of the data and the pieces of a header.
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/checkpoint/open.hpp"
#include "host/formats/npy/header.hpp"
#include "host/value/state_dict.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/fuzz/unrolled.hpp"

using namespace cbk;

namespace {

std::string file_of(std::string_view input) {
  const bool is_short = static_cast<uint8_t>(input[0]) % 2 != 0;
  const std::string header = unrolled(input.substr(2), is_short ? 0xffff : 1 << 20);
  std::string out = is_short ? std::string("\x93NUMPY\x01\0", 8) : std::string("\x93NUMPY\x02\0", 8);
  if (is_short) append_le<uint16_t>(out, static_cast<uint16_t>(header.size()));
  if (!is_short) append_le<uint32_t>(out, static_cast<uint32_t>(header.size()));
  return out + header + std::string(static_cast<uint8_t>(input[1]), 'x');
}

void look_at(const Checkpoint& checkpoint) {
  for (const NamedTensor& named : flat_tensors(checkpoint.root, "a file")) {
    const Tensor& tensor = named.leaf.as_tensor();
    (void)tensor.to_bytes();
    const std::string again = npy::write_header(tensor.dtype(), tensor.shape());
    const npy::Header header = npy::read_header(as_bytes(again));
    if (header.dtype != tensor.dtype() || header.shape != tensor.shape() || header.data_start != again.size())
      std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.npy", getpid());
  std::string file(reinterpret_cast<const char*>(data), size);
  if (file.size() > 3 && file.starts_with('\0')) file = file_of(file.substr(1));
  write_file(path, file, true);
  const MemoryBar bar(file.size());
  try {
    const Checkpoint checkpoint = open_checkpoint(path);
    if (checkpoint.format == "npy") look_at(checkpoint);
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
