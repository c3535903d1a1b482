#include "host/formats/file_names.hpp"
#include "host/formats/shard_layout.hpp"

#include <catch2/catch.hpp>

#include "host/checkpoint/formats.hpp"
#include "host/checkpoint/make_writer.hpp"
#include "host/checkpoint/open.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;

namespace {

void save(const fs::path& target, const WriteOptions& options = {}) {
  const Value root = Value::dict();
  root.as_dict().set("w", Tensor::full(DType::float32, {3}, 1));
  const auto writer = make_writer(root, target, options);
  write_one(*writer);
}

/// The format by the content, in the words of WriteOptions.
std::string format_at(const fs::path& path) {
  const std::string format = open_checkpoint(path).format;
  if (format.find("h5") != std::string::npos) return "h5";
  return format.substr(0, format.find('-'));
}

}  // namespace

TEST_CASE("file names: each suffix is written, opened and found in a folder as the same format", "[names]") {
  for (const Format& format : all_formats()) {
    for (const std::string_view suffix :
         format.is_written() ? format.suffixes : std::span<const std::string_view>()) {
      CAPTURE(suffix);
      const Folder folder;
      const fs::path path = folder.path("x" + std::string(suffix));
      CHECK(format_of_suffix(path) == &format);
      CHECK(list_of_suffixes().find(suffix) != std::string::npos);
      save(path);
      CHECK(format_at(path) == format.name);
      CHECK(format_at(folder.path()) == format.name);
      if (!format.has_shards()) continue;

      // The same file under the name of a shard is not taken for a checkpoint.
      const std::string shard = shard_name("x", 1, 2, suffix);
      fs::rename(path, folder.path(shard));
      CHECK(is_shard_name(shard));
      CHECK(is_written_shard_name(shard) == (suffix == format.shard_suffix));
      CHECK_THROWS_WITH(open_checkpoint(folder.path()), Catch::Contains("but not their index"));
      CHECK(format_at(folder.path(shard)) == format.name);
    }
    CHECK(format_of_name(format.name) == &format);
    CHECK((format.usual.empty() || format_of_suffix(format.usual) == &format));
  }
  CHECK_FALSE(format_of_suffix("x.gguf")->is_written());
  CHECK(format_of_suffix("mdl") == nullptr);
  CHECK(format_of_name("onnx") == nullptr);
  CHECK(format_of_name("tf") == format_of_name("tensorflow"));
}

TEST_CASE("file names: shards are written under names that are known as theirs", "[names]") {
  for (const Format& format : all_formats()) {
    if (!format.has_shards()) continue;
    CAPTURE(format.name);
    const Folder folder;
    WriteOptions options;
    options.format = format.name;
    options.h5_version = format.name == "h5" ? "flat" : "";
    options.shard_size = 4;
    save(folder.path("out"), options);
    for (const std::string& name : folder.names("out")) CHECK(is_written_shard_name(name));
    CHECK(is_shard_name(folder.names("out").front()));
    CHECK(format_at(folder.path("out")) == format.name);
  }
}

TEST_CASE("shards by names: files are numbered without gaps, and the rest are in a last one", "[names]") {
  using Places = std::vector<size_t>;
  CHECK(shards_by_name({"a", "b", "c"}, {}) == Places{0, 0, 0});
  CHECK(shards_by_name({"a", "b", "c"}, {{"b", 7}, {"c", 3}, {"z", 5}}) == Places{2, 1, 0});
  CHECK(shards_by_name({"a", "b"}, {{"a", 2}, {"b", 2}}) == Places{0, 0});
  CHECK(shards_by_name({}, {{"a", 1}}).empty());
}

TEST_CASE("file names: parts have two numbers of five digits or more", "[names]") {
  CHECK(shard_name("model", 2, 3, ".bin") == "model-00002-of-00003.bin");
  CHECK(shard_name("model", 2, 123456, ".bin") == "model-00002-of-123456.bin");
  CHECK(data_file_name("a/m.ckpt", 0, 2) == "a/m.ckpt.data-00000-of-00002");
  for (const char* name :
       {"model-00001-of-00003.safetensors", "-00001-of-00003.mdl", "m-123456-of-123457.pt"})
    CHECK(is_shard_name(name));
  for (const char* name : {"model.bin", "model-0001-of-0003.bin", "model-00001-of-00003",
                           "00001-of-00003.bin", "model-00001-of-0000x.bin", "model-x0001-of-00003.bin",
                           "m-00001-of-00002.txt", "m.index", "m-00001-of-00002.index"})
    CHECK_FALSE(is_shard_name(name));
  CHECK(is_written_shard_name("pytorch_model.bin.index.json"));
  CHECK(is_written_shard_name("model.safetensors"));
  CHECK_FALSE(is_written_shard_name("config.json"));
  CHECK(prefix_of_data_file("m.ckpt-1.data-00000-of-00001") == "m.ckpt-1");
  CHECK(prefix_of_data_file("m.data-00000-of-00001.tmp") == std::nullopt);
  CHECK(prefix_of_data_file("m-00000-of-00001") == std::nullopt);
}
