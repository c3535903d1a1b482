#include "host/checkpoint/open.hpp"

#include <catch2/catch.hpp>

#include "host/checkpoint/make_writer.hpp"
#include "host/value/json.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;

namespace {

/// Keys with float32 vectors of these numbers of elements, in order.
Value vectors(std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  const Value root = Value::dict();
  double value = 1;
  for (const auto& [key, size] : sizes)
    root.as_dict().set(key, Tensor::full(DType::float32, {size}, value++));
  return root;
}

void save(const Value& root, const fs::path& target, const WriteOptions& options) {
  const auto writer = make_writer(root, target, options);
  write_one(*writer);
}

WriteOptions sharded(const std::string& format, uint64_t size) {
  WriteOptions options;
  options.format = format;
  options.shard_size = size;
  return options;
}

std::vector<std::string> keys_of(const Checkpoint& checkpoint) {
  std::vector<std::string> keys;
  for (const auto& entry : checkpoint.root.as_dict().entries()) keys.push_back(entry.first.as_string());
  return keys;
}

bool same_content(const Value& a, const Value& b) {
  if (a.as_dict().size() != b.as_dict().size()) return false;
  for (const auto& [key, value] : a.as_dict().entries()) {
    const Value* other = b.find(key.as_string());
    if (other == nullptr || other->as_tensor().to_bytes() != value.as_tensor().to_bytes()) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("checkpoint: a sharded folder, there and back", "[checkpoint]") {
  const auto format = GENERATE(std::string("torch"), std::string("safetensors"));
  const Folder folder;
  const Value root = vectors({{"z", 10}, {"a", 10}, {"m.w", 5}, {"m.b", 20}});
  WriteOptions options = sharded(format, 60);
  options.companions = {{"config.json", "{}\n"}};
  save(root, folder.path("out"), options);

  const std::string stem = format == "torch" ? "pytorch_model" : "model";
  const std::string suffix = format == "torch" ? ".bin" : ".safetensors";
  const auto shard = [&](int i) { return fmt::format("{}-{:05}-of-00003{}", stem, i, suffix); };
  CHECK(folder.names("out") == (std::vector<std::string>{"config.json", shard(1), shard(2), shard(3),
                                                         stem + suffix + ".index.json"}));
  CHECK(read_file(folder.path("out/" + stem + suffix + ".index.json")) ==
        fmt::format(
            "{{\n    \"metadata\": {{\n        \"total_size\": 180\n    }},\n    \"weight_map\": {{\n        "
            "\"z\": \"{0}\",\n"
            "        \"a\": \"{1}\",\n        \"m.w\": \"{1}\",\n        \"m.b\": \"{2}\"\n    }}\n}}\n",
            shard(1), shard(2), shard(3)));

  for (const std::string& path : {std::string("out"), "out/" + stem + suffix + ".index.json"}) {
    const Checkpoint back = open_checkpoint(folder.path(path));
    CHECK(back.format == format + "-sharded");
    CHECK(back.files.size() == 3);
    CHECK(back.metadata.find("total_size")->as_int() == 180);
    CHECK(keys_of(back) == (std::vector<std::string>{"z", "a", "m.w", "m.b"}));
    CHECK(same_content(root, back.root));
  }
  if (format == "safetensors") {
    CHECK(open_checkpoint(folder.path("out/" + shard(2))).metadata.find("format")->as_string() == "pt");
  }
}

TEST_CASE("checkpoint: where shards end", "[checkpoint]") {
  const auto [sizes, limit, wanted] =
      GENERATE(table<std::vector<std::pair<const char*, int64_t>>, uint64_t, std::vector<size_t>>({
          {{{"a", 10}, {"b", 5}}, 60, {2}},      // exactly full
          {{{"a", 10}, {"b", 5}}, 59, {1, 1}},   // one byte short
          {{{"a", 100}, {"b", 1}}, 10, {1, 1}},  // the first is too large: a shard of its own, none is empty
      }));
  const Folder folder;
  const Value root = Value::dict();
  for (const auto& [key, size] : sizes) root.as_dict().set(key, Tensor::full(DType::float32, {size}, 1));
  save(root, folder.path("out"), sharded("safetensors", limit));
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto name = fmt::format("out/model-{:05}-of-{:05}.safetensors", i + 1, wanted.size());
    CHECK(open_checkpoint(folder.path(name)).root.as_dict().size() == wanted[i]);
  }
  CHECK(keys_of(open_checkpoint(folder.path("out"))).size() == sizes.size());
}

TEST_CASE("checkpoint: without tensors it is one file, and has no index", "[checkpoint]") {
  const Folder folder;
  save(Value::dict(), folder.path("out"), sharded("safetensors", 10));
  CHECK(open_checkpoint(folder.path("out/model.safetensors")).root.as_dict().empty());
  CHECK(keys_of(open_checkpoint(folder.path("out"))).empty());
}

TEST_CASE("checkpoint: bools count as bits towards the limit", "[checkpoint]") {
  const Folder folder;
  const Value root = Value::dict();
  root.as_dict().set("mask", Tensor::full(DType::boolean, {81}, 1));
  root.as_dict().set("w", Tensor::full(DType::uint8, {9}, 1));
  save(root, folder.path("out"), sharded("torch", 20));
  CHECK(folder.names("out").size() == 2);
  CHECK(open_checkpoint(folder.path("out")).metadata.find("total_size")->as_int() == 20);
}

TEST_CASE("checkpoint: nothing appears when a sharded write fails", "[checkpoint]") {
  const Folder folder;
  const Value root = vectors({{"a", 10}});
  {
    const auto writer = make_writer(root, folder.path("out/"), sharded("torch", 10));
    Transaction transaction;
    writer->lay_out(transaction);
  }
  CHECK(folder.names().empty());
  WriteOptions options = sharded("torch", 10);
  for (const char* name :
       {"../x", "", "..", "a/b/c", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"}) {
    options.companions = {{name, ""}};
    CHECK_THROWS_AS(make_writer(root, folder.path("out"), options), Error);
  }
  root.as_dict().set("step", 1);
  CHECK_THROWS_WITH(make_writer(root, folder.path("out"), sharded("torch", 10)), Catch::Contains("'step'"));
  CHECK_THROWS_AS(make_writer(vectors({}), folder.path("out"), sharded("h5", 10)), Error);
  fs::create_directory(folder.path("out"));
  CHECK_THROWS_WITH(make_writer(vectors({}), folder.path("out"), sharded("torch", 10)),
                    Catch::Contains("exists"));
}

TEST_CASE("checkpoint: indexes that lie are refused", "[checkpoint]") {
  const Folder folder;
  save(vectors({{"a", 1}, {"extra", 1}}), folder.path("s.safetensors"), {});
  const std::vector<std::pair<std::string, std::string>> table = {
      {R"({"weight_map": {"a": "s.safetensors", "b": "gone.bin", "c": "lost.bin"}})",
       "2 of 3 shards are missing: 'gone.bin', 'lost.bin'"},
      {R"({"weight_map": {"a": "s.safetensors", "b": "s.safetensors"}})",
       "lacks a key that the index lists: 'b'"},
      {R"({"weight_map": {"a": "../s.safetensors"}})", "'weight_map' of 'a': it names the file"},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "--allow-external '/etc'"},
      {R"({"weight_map": {"a": ""}})", "'' is not the name of a file"},
      {R"({"weight_map": {"a": "."}})", "outside the folder"},
      {R"({"weight_map": {"a": 5}})", "gives an int for 'a'"},
      {R"({"weight_map": []})", "no 'weight_map'"},
      {R"({"weight_map": {}})", "'weight_map' is empty"},
      {R"({"weight_map": {"a": "x.index.json"}})", "shard 'x.index.json'"},
      {R"({"weight_map": {"a": "s.safetensors", "a": "s.safetensors"}})", "repeated"},
      {R"({"weights": {}})", "no 'weight_map'"},
      {"{", "line 1"},
  };
  for (const auto& [text, reason] : table) {
    CAPTURE(text);
    CHECK_THROWS_WITH(open_checkpoint(folder.write("x.index.json", text)), Catch::Contains(reason));
  }
  const Checkpoint checkpoint =
      open_checkpoint(folder.write("x.index.json", R"({"weight_map": {"a": "s.safetensors"}})"));
  CHECK(keys_of(checkpoint) == std::vector<std::string>{"a"});  // what else is in the shard is not part of it
}

TEST_CASE("checkpoint: files that are none are called by their name", "[checkpoint]") {
  const Folder folder;
  const std::string tensorflow = std::string(64, '\x01') + "\x57\xfb\x80\x8b\x24\x75\x47\xdb";
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "empty"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"},
      {"\n<!DOCTYPE html><html>", "web page"},
      {"{\"hidden_size\": 1}", "config"},
      {"config: {a: 1}\nmore: text\n", "text"},
      {"GGUF\x03", "GGUF"},
      {"\x1f\x8b\x08", "gzip"},
      {tensorflow, "TensorFlow"},
      {"\x80\x02}q\x01.", "pickle"},
      {std::string(300, '\xfe'), "its format is not known"},
  };
  for (const auto& [content, reason] : table) {
    CHECK_THROWS_WITH(open_checkpoint(folder.write("x", content)),
                      Catch::StartsWith("cannot open '") && Catch::Contains(reason));
  }
  CHECK_THROWS_WITH(open_checkpoint(folder.path("gone")), Catch::Contains("No such file"));
}

TEST_CASE("checkpoint: a folder that holds one checkpoint", "[checkpoint]") {
  const Folder folder;
  CHECK_THROWS_WITH(open_checkpoint(folder.path()), Catch::Contains("no checkpoint"));
  folder.write("config.json", "{}");
  save(vectors({{"a", 1}}), folder.path("weights.safetensors"), {});
  CHECK(keys_of(open_checkpoint(folder.path())) == std::vector<std::string>{"a"});
  save(vectors({{"b", 1}}), folder.path("optimizer.safetensors"), {});
  CHECK_THROWS_WITH(
      open_checkpoint(folder.path()),
      Catch::Contains("several") && Catch::Contains("optimizer.safetensors, weights.safetensors"));
  save(vectors({{"c", 1}}), folder.path("model.safetensors"), {});
  CHECK(keys_of(open_checkpoint(folder.path())) == std::vector<std::string>{"c"});
  fs::create_directory(folder.path("parts"));
  folder.write("parts/model-00001-of-00002.safetensors", "");
  CHECK_THROWS_WITH(open_checkpoint(folder.path("parts")), Catch::Contains("index"));
}

TEST_CASE("checkpoint: the suffix of a target gives its format, or an option", "[checkpoint]") {
  const Folder folder;
  CHECK_THROWS_WITH(make_writer(vectors({}), folder.path("x.gguf"), {}),
                    Catch::Contains("GGUF can only be read") && Catch::Contains(".mdl"));
  WriteOptions options;
  options.format = "onnx";
  CHECK_THROWS_WITH(make_writer(vectors({}), folder.path("x.pt"), options), Catch::Contains("known are"));
  options.format = "safetensors";
  save(vectors({{"a", 1}}), folder.path("x.bin"), options);
  CHECK(open_checkpoint(folder.path("x.bin")).format == "safetensors");
  CHECK_THROWS_WITH(make_writer(vectors({}), folder.path("x.bin/y/x.pt"), {}),
                    Catch::Contains("cannot write into") && Catch::Contains("x.bin'"));
}

TEST_CASE("checkpoint: small files appear together with a single file", "[checkpoint]") {
  const Folder folder;
  WriteOptions options;
  options.companions = {{"params.yaml", "a: 1\n"}};
  save(vectors({{"a", 1}}), folder.path("x.safetensors"), options);
  CHECK(read_file(folder.path("params.yaml")) == "a: 1\n");
  fs::remove(folder.path("x.safetensors"));
  CHECK_THROWS_WITH(make_writer(vectors({}), folder.path("x.safetensors"), options),
                    Catch::Contains("params.yaml"));
}

TEST_CASE("checkpoint: memory for the names of leaves is bounded, too", "[checkpoint][memory]") {
  const Folder folder;
  const fs::path path = folder.path("x.pt");
  const Value inner = Value::dict();
  for (int i = 0; i < 2000; ++i) inner.as_dict().set(std::to_string(i), Tensor::full(DType::float32, {1}, 1));
  WriteOptions options;
  options.overwrite = true;
  const auto save_below = [&](const std::string& key) {
    const Value root = Value::dict();
    root.as_dict().set(key, inner);
    save(root, path, options);
  };
  save_below(std::string(1000, 'k'));
  CHECK(open_checkpoint(path).root.as_dict().size() == 1);
  save_below(std::string(20'000, 'k'));
  CHECK_THROWS_WITH(open_checkpoint(path), Catch::Contains("the names in it") &&
                                               Catch::Contains("of memory, the limit for its size"));
}
