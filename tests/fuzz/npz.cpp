// Archives of arrays: whatever opens must be readable to the last byte, and the rest must be an Error.
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/checkpoint/open.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fs::path path = fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.npz", getpid());
  const std::string file(reinterpret_cast<const char*>(data), size);
  write_file(path, file, true);
  const MemoryBar bar(file.size());
  try {
    const Checkpoint checkpoint = open_checkpoint(path);
    if (checkpoint.format != "npz" && checkpoint.format != "npy") return 0;
    each_leaf(checkpoint.root, [&](const std::string& /*path*/, const Value& leaf) {
      if (leaf.is(Value::Kind::tensor) && leaf.as_tensor().nbytes() < (1 << 20))
        (void)leaf.as_tensor().to_bytes();
    });
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
