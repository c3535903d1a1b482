// Safetensors files: whatever opens must be readable to the last byte, and its tensors be found by their
// names; the rest must be an Error. What an input that begins with 0 has behind it are the size of the data
// and the pieces of a header.
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/checkpoint/open.hpp"
#include "host/value/state_dict.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/fuzz/unrolled.hpp"

using namespace cbk;

namespace {

std::string file_of(std::string_view input) {
  const std::string header = unrolled(input.substr(1), 1 << 20);
  std::string out;
  append_le<uint64_t>(out, header.size());
  return out + header + std::string(static_cast<uint8_t>(input[0]), 'x');
}

void look_at(const Checkpoint& checkpoint) {
  size_t count = 0;
  each_leaf(checkpoint.root, [&](const std::string& path, const Value&) {
    if (++count <= 100 && !path.empty() && find_path(checkpoint.root, path) == nullptr) std::abort();
  });
  for (const NamedTensor& tensor : flat_tensors(checkpoint.root, "a file"))
    (void)tensor.leaf.as_tensor().to_bytes();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.safetensors", getpid());
  std::string file(reinterpret_cast<const char*>(data), size);
  if (file.size() > 2 && file.starts_with('\0')) file = file_of(file.substr(1));
  write_file(path, file, true);
  const MemoryBar bar(file.size());
  try {
    const Checkpoint checkpoint = open_checkpoint(path, {.salvage = size % 2 == 1});
    if (checkpoint.format == "safetensors") look_at(checkpoint);
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
