// Safetensors files: whatever opens must be readable to the last byte; the rest must be an Error.
#include <unistd.h>

#include "host/base/transaction.hpp"
#include "host/checkpoint/checkpoint.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const cbk::fs::path path =
      cbk::fs::temp_directory_path() / fmt::format("cbk-fuzz-{}.safetensors", getpid());
  cbk::write_file(path, {reinterpret_cast<const char*>(data), size}, true);
  try {
    const cbk::Checkpoint checkpoint = cbk::open_checkpoint(path);
    if (checkpoint.format != "safetensors") return 0;
    for (const auto& entry : checkpoint.root.as_dict().entries()) (void)entry.second.as_tensor().to_bytes();
  } catch (const cbk::Error&) {
    return 0;
  }
  return 0;
}
