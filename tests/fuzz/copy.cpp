// Copies of whatever opens, also of what is left of it: every tensor is again in the copy under its name,
// with its bytes; the rest must be an Error. The first byte of an input chooses the target and the options,
// the others are a file.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <string>

#include "host/base/transaction.hpp"
#include "host/checkpoint/make_writer.hpp"
#include "host/checkpoint/open.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;

namespace {

constexpr size_t most_leaves = 300;
constexpr uint64_t most_bytes = 1 << 20;

struct TooLarge {};

std::map<std::string, Tensor> tensors_of(const Value& root) {
  std::map<std::string, Tensor> out;
  uint64_t bytes = 0;
  size_t leaves = 0;
  each_leaf(root, [&](const std::string& path, const Value& leaf) {
    if (++leaves > most_leaves) throw TooLarge();
    if (!leaf.is(Value::Kind::tensor)) return;
    const Tensor& tensor = leaf.as_tensor();
    if (tensor.numel() > static_cast<int64_t>(most_bytes) || (bytes += tensor.nbytes()) > most_bytes)
      throw TooLarge();
    out.insert_or_assign(path, tensor);
  });
  return out;
}

template <typename Action>
bool succeeds(Action action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    if (error.code() != Errc::internal) return false;
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
}

/// Every tensor of `before` is in the copy, under its path, or that of the file where the format has no
/// names.
void compare(const Value& before, const fs::path& copy) {
  const Checkpoint checkpoint = open_checkpoint(copy, {.allow_records = true});  // an Error is a crash
  const auto found = tensors_of(checkpoint.root);
  for (const auto& [path, tensor] : tensors_of(before)) {
    const auto at = checkpoint.format == "npy" ? found.begin() : found.find(path);
    if (at == found.end() || at->second.dtype() != tensor.dtype() || at->second.shape() != tensor.shape() ||
        at->second.to_bytes() != tensor.to_bytes()) {
      std::fprintf(stderr, "the copy has not the same '%s'\n", path.c_str());
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const std::string prefix =
      (fs::temp_directory_path() / fmt::format("cbk-fuzz-{}", getpid())).string();
  constexpr auto targets =
      std::to_array<const char*>({"-copy.pt", "-copy.safetensors", "-copy.h5", "-copy.mdl", "-copy.npz",
                                  "-copy.index", "-copy.npy", "-copy.04.mdl"});
  const uint8_t choice = data[0];
  const fs::path source = prefix + ".source";
  const fs::path target = prefix + targets.at(choice % targets.size());
  const std::string file(reinterpret_cast<const char*>(data + 1), size - 1);
  write_file(source, file, true);
  const MemoryBar bar(file.size());
  Value root;
  const OpenOptions opening{.allow_records = (choice & 16) != 0, .salvage = (choice & 8) != 0};
  WriteOptions writing;
  writing.overwrite = true;
  writing.compression = static_cast<Compression>(choice >> 5 & 3);
  if (choice % targets.size() == targets.size() - 1) writing.h5_version = "0.4";
  try {
    const bool is_written = succeeds([&] {
      root = open_checkpoint(source, opening).root;
      (void)tensors_of(root);
      const auto writer = make_writer(root, target, writing);
      StreamingOptions how;
      how.threads = 1;
      how.memory = 8 << 20;
      write_one(*writer, how);
    });
    if (is_written) compare(root, target);
  } catch (const TooLarge&) {
  }
  return 0;
}
