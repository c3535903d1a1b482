#include <catch2/catch.hpp>

#include "host/checkpoint/make_writer.hpp"
#include "host/checkpoint/open.hpp"
#include "host/formats/safetensors/reader.hpp"
#include "host/value/json.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;

namespace {

std::string file_of(std::string_view header, std::string_view data = "") {
  std::string out;
  append_le<uint64_t>(out, header.size());
  return out.append(header).append(data);
}

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":{}}})", dtype, shape, offsets);
}

Tensor floats(std::initializer_list<float> values, Shape shape) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return Tensor::from_bytes(DType::float32, std::move(shape), std::move(bytes));
}

void save(const Value& root, const fs::path& target, WriteOptions options = {}) {
  const auto writer = make_writer(root, target, options);
  write_one(*writer);
}

}  // namespace

TEST_CASE("safetensors: the file is laid out as the reference writer does", "[safetensors]") {
  const Folder folder;
  const Value inner = Value::dict();
  inner.as_dict().set("w", floats({1, 2, 3, 4}, {2, 2}).transpose(0, 1));
  inner.as_dict().set("mask", Tensor::full(DType::boolean, {3}, 1));
  const Value root = Value::dict();
  root.as_dict().set("b", Tensor::full(DType::bfloat16, {}, 1));
  root.as_dict().set("a", inner);
  root.as_dict().set("n", Tensor::full(DType::int64, {1}, -1));
  root.as_dict().set("none", Tensor::full(DType::float32, {0, 3}, 0));
  WriteOptions options;
  options.metadata = parse_json(R"({"format": "pt", "note": "ü\n"})");
  save(root, folder.path("x.safetensors"), options);

  const std::string text = read_file(folder.path("x.safetensors"));
  const std::string header =
      R"({"__metadata__":{"format":"pt","note":"ü\n"},"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a.w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},"none":{"dtype":"F32","shape":[0,3],"data_offsets":[24,24]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"a.mask":{"dtype":"BOOL","shape":[3],"data_offsets":[26,29]}})";
  const auto length = load_le<uint64_t>(text.data());
  CHECK(length % 8 == 0);
  CHECK(text.substr(8, header.size()) == header);
  CHECK(text.substr(8 + header.size(), length - header.size()).find_first_not_of(' ') == std::string::npos);
  CHECK(text.substr(8 + length) == std::string(8, '\xff') +
                                       std::string("\0\0\x80\x3f\0\0\x40\x40\0\0\0\x40\0\0\x80\x40", 16) +
                                       "\x80\x3f\x01\x01\x01");

  const Checkpoint back = open_checkpoint(folder.path("x.safetensors"));
  CHECK(back.format == "safetensors");
  CHECK(back.metadata.equals(options.metadata));
  CHECK(std::next(back.root.as_dict().entries().begin())->first.as_string() == "a.w");
  CHECK(back.root.find("a.w")->as_tensor().to_bytes() == inner.find("w")->as_tensor().to_bytes());
  CHECK(folder.names() == std::vector<std::string>{"x.safetensors"});
}

TEST_CASE("safetensors: an empty dict, and order of the header", "[safetensors]") {
  const Folder folder;
  save(Value::dict(), folder.path("e.safetensors"));
  CHECK(read_file(folder.path("e.safetensors")) == file_of("{\"__metadata__\":{\"format\":\"pt\"}}"));
  CHECK(open_checkpoint(folder.path("e.safetensors")).root.as_dict().empty());
  const std::string header =
      "{\"z\":" + entry("U8", "[2]", "[2,4]") + ",\"a\":" + entry("U8", "[2]", "[0,2]") + "} ";
  const Checkpoint checkpoint = open_checkpoint(folder.write("o.safetensors", file_of(header, "abcd")));
  CHECK(checkpoint.root.as_dict().entries().front().first.as_string() == "z");
  CHECK(checkpoint.root.find("z")->as_tensor().to_bytes() == Bytes{std::byte{'c'}, std::byte{'d'}});
  CHECK(checkpoint.metadata.is_none());
}

TEST_CASE("safetensors: damaged and lying files are refused with a reason", "[safetensors]") {
  const std::string good = entry("F32", "[2]", "[0,8]");
  const std::string data(8, 'x');
  const std::vector<std::pair<std::string, std::string>> table = {
      {file_of("{\"a\":" + good + "}", data + "y"), "1 bytes follow"},
      {file_of("{\"a\":" + good + "}", "short"), "cut short"},
      {file_of("{\"a\":" + good + ",\"a\":" + good + "}", data), "repeated"},
      {file_of("{\"a\":" + good + ",\"b\":" + good + "}", data), "overlaps"},
      {file_of("{\"a\":" + entry("F32", "[2]", "[8,16]") + "}", data + data), "a hole"},
      {file_of("{\"a\":" + entry("F32", "[3]", "[0,8]") + "}", data), "do not fit"},
      {file_of("{\"a\":" + entry("F32", "[2]", "[8,0]") + "}", data), "do not fit"},
      {file_of("{\"a\":" + entry("F33", "[2]", "[0,8]") + "}", data), "unknown dtype 'F33'"},
      {file_of("{\"a\":" + entry("F32", "[-2]", "[0,8]") + "}", data), "not a whole number"},
      {file_of("{\"a\":" + entry("F32", "[2.0]", "[0,8]") + "}", data), "not a whole number"},
      {file_of("{\"a\":" + entry("F32", "[true]", "[0,8]") + "}", data), "not a whole number"},
      {file_of("{\"a\":" + entry("F32", "[4294967296,4294967296]", "[0,0]") + "}"), "too large"},
      {file_of("{\"a\":" + entry("F32", "[4611686018427387904,4,0]", "[0,0]") + "}"), "too large"},
      {file_of("{\"a\":" + entry("F32", "[2]", "[0,18446744073709551615]") + "}", data),
       "not a whole number"},
      {file_of("{\"a\":" + entry("F32", "[2]", "[0]") + "}", data), "'data_offsets' has 1"},
      {file_of("{\"a\":" + entry("F4", "[3]", "[0,1]") + "}", "x"), "whole bytes"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", data), "'data_offsets' is missing"},
      {file_of("{\"a\":7}"), "an int where"},
      {file_of("{\"__metadata__\":{\"a\":1}}"), "only text"},
      {file_of("{\"__metadata__\":[]}"), "is a list"},
      {file_of("{nope"), "line 1"},
      {file_of("{\"a\":" + std::string(1000, '[')), "nested deeper"},
      {std::string("\xff\xff\xff\xff\0\0\0\0{}", 10), "at most 100000000"},
      {std::string("\xff\0\0\0\0\0\0\0{}", 10), "cut short"},
  };
  const Folder folder;
  for (const auto& [content, reason] : table) {
    CAPTURE(content.substr(8));
    CHECK_THROWS_WITH(open_checkpoint(folder.write("x.safetensors", content)),
                      Catch::Contains(reason) && Catch::Contains("x.safetensors"));
  }
}

TEST_CASE("safetensors: very many small tensors are opened", "[safetensors]") {
  constexpr size_t count = 80'000;
  std::string header = "{";
  for (size_t i = 0; i < count; ++i) {
    const std::string offsets = fmt::format("[{},{}]", i, i + 1);
    header += fmt::format(R"({}"layer.{}":{})", i > 0 ? "," : "", i, entry("I8", "[1]", offsets));
  }
  const Folder folder;
  const Checkpoint opened =
      open_checkpoint(folder.write("x.safetensors", file_of(header + "}", std::string(count, 'x'))));
  CHECK(opened.root.as_dict().size() == count);
}

TEST_CASE("safetensors: elements smaller than a byte can be listed, not read", "[safetensors]") {
  const Folder folder;
  const fs::path path =
      folder.write("f4.safetensors", file_of("{\"small\":" + entry("F4", "[4]", "[0,2]") + "}", "ab"));
  const Checkpoint checkpoint = open_checkpoint(path);
  CHECK(checkpoint.root.as_dict().at("small").as_object().repr == "F4 [4] (4 bits each)");
  CHECK_THROWS_WITH(make_writer(checkpoint.root, folder.path("copy.safetensors"), {}),
                    Catch::Contains("small"));
  CHECK(
      to_json(safetensors::inspect(path)) ==
      R"({"metadata": null, "tensors": [{"name": "small", "dtype": "F4", "shape": [4], "begin": 65, "stop": 67}]})");
}

TEST_CASE("safetensors: what it cannot hold is refused before anything is written", "[safetensors]") {
  const Folder folder;
  const auto refused = [&](const Value& root, const std::string& reason, const WriteOptions& options = {}) {
    CHECK_THROWS_WITH(save(root, folder.path("x.safetensors"), options), Catch::Contains(reason));
    CHECK(folder.names().empty());
  };
  const Tensor one = Tensor::full(DType::float32, {1}, 1);
  const auto dict = [](std::initializer_list<std::pair<const char*, Value>> entries) {
    const Value out = Value::dict();
    for (const auto& [key, value] : entries) out.as_dict().set(key, value);
    return out;
  };
  refused(one, "this is a tensor");
  refused(Value::list({one}), "this is a list");
  refused(dict({{"a", one}, {"step", 3}, {"lr", 0.5}, {"l", Value::list({one})}}),
          "3 keys are not: 'step' (int), 'lr' (float), 'l' (list)");
  refused(dict({{"a", dict({})}}), "'a' (an empty dict)");
  refused(dict({{"a.b", one}, {"a", dict({{"b", one}})}}), "'a.b'");
  refused(dict({{"a", Tensor::full(DType::complex128, {1}, 1)}}), "'a' (complex128)");
  refused(dict({{"__metadata__", one}}), "__metadata__");
  refused(dict({{"\xff", one}}), "Unicode");
  WriteOptions options;
  options.metadata = dict({{"n", 1}});
  refused(dict({{"a", one}}), "is text", options);
  folder.write("x.safetensors", "old");
  CHECK_THROWS_WITH(save(dict({{"a", one}}), folder.path("x.safetensors")),
                    Catch::Contains("exists already"));
  CHECK(read_file(folder.path("x.safetensors")) == "old");
}

TEST_CASE("safetensors: ties become copies, and that is said", "[safetensors]") {
  const Folder folder;
  const Tensor w = floats({1, 2}, {2});
  const Value root = Value::dict();
  root.as_dict().set("a", w);
  root.as_dict().set("b", w);
  const auto writer = make_writer(root, folder.path("x.safetensors"), {});
  REQUIRE(writer->warnings().size() == 1);
  CHECK_THAT(writer->warnings().front(), Catch::Contains("1 tied tensor is"));
  write_one(*writer);
  const Checkpoint back = open_checkpoint(folder.path("x.safetensors"));
  CHECK(back.root.find("a")->as_tensor().to_bytes() == back.root.find("b")->as_tensor().to_bytes());
}
