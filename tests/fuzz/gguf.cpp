// GGUF files: whatever opens must be readable to the last byte, and the rest must be an Error.
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/checkpoint/open.hpp"
#include "host/formats/gguf/header.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.gguf", getpid());
  const std::string file = "GGUF" + std::string(reinterpret_cast<const char*>(data), size);
  write_file(path, file, true);
  const MemoryBar bar(file.size());
  try {
    const Checkpoint checkpoint = open_checkpoint(path, {.salvage = size % 2 == 1});
    each_leaf(checkpoint.root, [&](const std::string& /*path*/, const Value& leaf) {
      if (leaf.is(Value::Kind::object) && leaf.as_object().type == gguf::texts_type)
        (void)gguf::texts_of(leaf.as_object());
      if (!leaf.is(Value::Kind::tensor)) return;
      const Tensor& tensor = leaf.as_tensor();
      const bool is_readable = tensor.view()->storage->problem().empty();
      if (is_readable && tensor.nbytes() < (1 << 20)) (void)tensor.to_bytes();
    });
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
