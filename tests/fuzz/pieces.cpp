// Pieces of tensors in files of safetensors: what is joined can be read at both ends, and the rest is an
// Error. The input is two files: the first has as many bytes as its first byte times 8 says.
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/formats/ranks/pieces.hpp"
#include "host/formats/safetensors/reader.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

namespace {

Checkpoint file_of(std::string_view content, int number, MemoryBudget& memory) {
  const fs::path path =
      fs::temp_directory_path() / fmt::format("cbk-fuzz-{}-{}.safetensors", getpid(), number);
  write_file(path, content, true);
  Checkpoint file = safetensors::read(MappedFile::open(path), {}, memory);
  file.path = path;
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const size_t first = std::min<size_t>(static_cast<uint8_t>(input[0]) * 8, input.size() - 1);
  const MemoryBar bar(input.size());
  MemoryBudget memory(input.size());
  try {
    std::vector<Checkpoint> files;
    files.push_back(file_of(input.substr(1, first), 0, memory));
    if (first + 1 < input.size()) files.push_back(file_of(input.substr(1 + first), 1, memory));
    for (const Checkpoint& file : files)
      if (!ranks::has_pieces(file)) return 0;
    const Value root = ranks::join_pieces(files, memory);
    for (const auto& [key, value] : root.as_dict().entries()) {
      const Tensor& tensor = value.as_tensor();
      Bytes element(size_of(tensor.dtype()));
      if (tensor.numel() == 0) continue;
      tensor.read(0, element);
      tensor.read(tensor.numel() - 1, element);
    }
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
