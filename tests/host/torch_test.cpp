#include <libdeflate.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstring>
#include <limits>
#include <numeric>

#include "host/formats/pickle/pickler.hpp"
#include "host/formats/pickle/unpickler.hpp"
#include "host/formats/torch/disassembler.hpp"
#include "host/formats/torch/legacy.hpp"
#include "host/formats/torch/reader.hpp"
#include "host/formats/torch/writer.hpp"
#include "host/formats/zip/archive.hpp"
#include "host/formats/zip/layout.hpp"
#include "host/formats/zip/records.hpp"
#include "host/tensor/packed_storage.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/peak_memory.hpp"
#include "tests/host/pickles.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;
using namespace std::string_literals;
using Catch::Contains;

namespace {

StoragePtr storage_of(const Value& value) {
  return value.as_tensor().view()->storage;
}

Value view_of(const Value& base, int64_t offset, Shape shape, Shape strides) {
  return Tensor::from_view({storage_of(base), DType::float32, offset, std::move(shape), std::move(strides)});
}

void write(const Value& root, const fs::path& path) {
  const auto writer = torch::make_writer(root, path, {});
  write_one(*writer);
}

Checkpoint read(const fs::path& path, bool allow_records = false) {
  OpenOptions options;
  options.allow_records = allow_records;
  return torch::read(MappedFile::open(path), options);
}

Value written_and_read(const Folder& folder, const Value& root) {
  const fs::path path = folder.path("round.pt");
  fs::remove(path);
  write(root, path);
  return read(path).root;
}

/// An archive of stored or deflated members, as any zip program makes it.
void write_zip(const fs::path& path, const std::vector<std::pair<std::string, std::string>>& members,
               bool deflate = false) {
  std::string out;
  std::string directory;
  for (const auto& [name, content] : members) {
    std::string data = content;
    if (deflate) {
      libdeflate_compressor* compressor = libdeflate_alloc_compressor(6);
      data.resize(libdeflate_deflate_compress_bound(compressor, content.size()));
      data.resize(
          libdeflate_deflate_compress(compressor, content.data(), content.size(), data.data(), data.size()));
      libdeflate_free_compressor(compressor);
    }
    std::string common;
    append_le(common, uint16_t{20});
    append_le(common, uint16_t{0});
    append_le(common, static_cast<uint16_t>(deflate ? 8 : 0));
    append_le(common, uint32_t{0});
    append_le(common, libdeflate_crc32(0, content.data(), content.size()));
    append_le(common, static_cast<uint32_t>(data.size()));
    append_le(common, static_cast<uint32_t>(content.size()));
    append_le(common, static_cast<uint16_t>(name.size()));
    append_le(common, uint16_t{0});
    directory += "PK\x01\x02"s + "\x14\x00"s + common + std::string(10, '\0');
    append_le(directory, static_cast<uint32_t>(out.size()));
    directory += name;
    out += "PK\x03\x04"s + common + name + data;
  }
  std::string end = "PK\x05\x06"s + std::string(4, '\0');
  append_le(end, static_cast<uint16_t>(members.size()));
  append_le(end, static_cast<uint16_t>(members.size()));
  append_le(end, static_cast<uint32_t>(directory.size()));
  append_le(end, static_cast<uint32_t>(out.size()));
  write_file(path, out + directory + end + "\0\0"s, true);
}

std::string tensor_pickle(const std::string& storage, int offset, int size, int stride) {
  const auto number = [](int value) { return "K"s + static_cast<char>(value); };
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + number(offset) + number(size) +
         "\x85" + number(stride) + "\x85\x89" + global("collections", "OrderedDict") + ")RtR";
}

}  // namespace

TEST_CASE("a torch file keeps ties, shared storages and strides", "[torch]") {
  const Folder folder;
  const Value base = number_tensor(24);
  const auto parameter = std::make_shared<const TensorLeaf>(
      TensorLeaf{number_tensor(4).as_tensor(), TensorLeaf::Role::parameter, true});
  const Value root =
      dict_of({{"base", base},
               {"grid", view_of(base, 0, {4, 6}, {6, 1})},
               {"turned", view_of(base, 0, {6, 4}, {1, 6})},
               {"column", view_of(base, 2, {4}, {6})},
               {"wide", view_of(base, 3, {2, 5}, {1, 0})},
               {"scalar", view_of(base, 7, {}, {})},
               {"nothing", view_of(base, 5, {0}, {1})},
               {"again", base},
               {"parameter", Value(parameter)},
               {"half", Tensor::full(DType::bfloat16, {3}, 0.5)},
               {"computed", view_of(base, 0, {4, 6}, {6, 1}).as_tensor().transpose(0, 1)},
               {"small", Tensor::from_bytes(DType::uint16, {2}, Bytes(4, std::byte{7}))},
               {"tiny", Tensor::from_bytes(DType::float8_e4m3fn, {3}, Bytes(3, std::byte{9}))}});
  const Value back = written_and_read(folder, root);
  REQUIRE(back.as_dict().size() == root.as_dict().size());
  for (const auto& [key, value] : root.as_dict().entries()) {
    INFO(key.as_string());
    const Tensor& was = value.as_tensor();
    const Tensor& is = back.find(key.as_string())->as_tensor();
    CHECK(is.dtype() == was.dtype());
    CHECK(is.shape() == was.shape());
    CHECK(is.to_bytes() == was.to_bytes());
    if (was.view() != nullptr && storage_of(value) == storage_of(base)) {
      CHECK(storage_of(*back.find(key.as_string())) == storage_of(*back.find("base")));
      CHECK(is.view()->strides == was.view()->strides);
      CHECK(is.view()->offset == was.view()->offset);
    }
  }
  CHECK(back.find("base")->same(*back.find("again")));
  CHECK(back.find("parameter")->as_leaf().role == TensorLeaf::Role::parameter);
  CHECK(back.find("parameter")->as_leaf().requires_grad);
  CHECK(storage_of(*back.find("computed")) != storage_of(*back.find("base")));
  CHECK(folder.names().size() == 1);
}

TEST_CASE("only what is referred to is written, when that is less than half", "[torch]") {
  const Folder folder;
  const Value big = number_tensor(10000);
  const Value root = dict_of({{"head", view_of(big, 0, {10}, {1})},
                              {"middle", view_of(big, 5000, {10, 10}, {10, 1})},
                              {"inside", view_of(big, 5010, {5}, {1})},
                              {"column", view_of(big, 8000, {10}, {100})}});
  const Value back = written_and_read(folder, root);
  CHECK(fs::file_size(folder.path("round.pt")) < 4000);
  for (const auto& [key, value] : root.as_dict().entries()) {
    const Value& now = *back.find(key.as_string());
    CHECK(now.as_tensor().to_bytes() == value.as_tensor().to_bytes());
    CHECK(storage_of(now) == storage_of(*back.find("head")));
  }
  CHECK(storage_of(*back.find("head"))->size() == 4 * (10 + 100 + 10));
}

TEST_CASE("checksums of the source are not computed again", "[torch]") {
  const Folder folder;
  write(dict_of({{"a", number_tensor(100)}, {"b", number_tensor(50)}}), folder.path("a.pt"));
  const Value root = read(folder.path("a.pt")).root;
  root.as_dict().set("c", root.find("a")->as_tensor().cast(DType::float64));
  const auto writer = torch::make_writer(root, folder.path("b.pt"), {});
  REQUIRE(writer->items().size() == 3);
  for (const Item& item : writer->items()) CHECK((item.checksum == Checksum::crc32) == (item.key == "c"));
  uint64_t total = writer->overhead();
  for (const Item& item : writer->items()) total += item.tensor.nbytes();
  write_one(*writer);
  CHECK(fs::file_size(folder.path("b.pt")) == total);
  const zip::Archive archive(MappedFile::open(folder.path("b.pt")));
  for (const zip::Entry& entry : archive.entries()) archive.verify(entry);
  CHECK_THROWS_AS(torch::make_writer(root, folder.path("b.pt"), {}), Error);

  write(root, folder.path("b2.pt"));
  fs::create_directories(folder.path("x"));
  write(root, folder.path("x/b2.pt"));
  CHECK(read_file(folder.path("b2.pt")) == read_file(folder.path("x/b2.pt")));
}

TEST_CASE("sparse and quantized tensors survive", "[torch]") {
  const Folder folder;
  const auto size = std::make_shared<Sequence>(Sequence{Sequence::Kind::torch_size, {2, 3}, {}, {}});
  const Tensor indices = Tensor::from_bytes(DType::int64, {2, 1}, Bytes(16));
  const Value sparse = std::make_shared<Object>(Object{
      "torch.sparse_coo", "",
      dict_of({{"shape", size}, {"indices", indices}, {"values", number_tensor(1)}, {"is_coalesced", {}}})});
  const Tensor whole = Tensor::from_bytes(DType::int8, {2, 2}, Bytes(4, std::byte{3}));
  const Value quantized = std::make_shared<Object>(Object{"torch.quantized", "",
                                                          dict_of({{"dtype", "qint8"},
                                                                   {"int_repr", whole},
                                                                   {"qscheme", "torch.per_channel_affine"},
                                                                   {"scales", Value::list({0.5, 0.25})},
                                                                   {"zero_points", Value::list({0, 5})},
                                                                   {"axis", 0},
                                                                   {"requires_grad", false}})});
  const Value back = written_and_read(folder, dict_of({{"s", sparse}, {"q", quantized}}));
  const Dict& s = back.find("s")->as_object().state.as_dict();
  CHECK(s.at("shape").equals(size));
  CHECK(s.at("values").as_tensor().to_bytes() == number_tensor(1).as_tensor().to_bytes());
  const Dict& q = back.find("q")->as_object().state.as_dict();
  CHECK(q.at("scales").equals(Value::list({0.5, 0.25})));
  CHECK(q.at("zero_points").equals(Value::list({0, 5})));
  CHECK(q.at("int_repr").as_tensor().to_bytes() == whole.to_bytes());
}

TEST_CASE("archives of other programs are read: deflated, big-endian, without torch's padding", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("other.pt");
  const std::string pickle = "\x80\x02}" + text("w") + tensor_pickle(floats("0", 4), 0, 4, 1) + "s.";
  const std::string data = "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40"s;
  std::string swapped;
  for (size_t i = 0; i < data.size(); ++i) swapped.push_back(data[i / 4 * 4 + 3 - i % 4]);
  for (bool deflate : {false, true}) {
    write_zip(path, {{"m/data.pkl", pickle}, {"m/data/0", data}, {"m/version", "3\n"}}, deflate);
    CHECK(as_text(read(path).root.find("w")->as_tensor().to_bytes()) == data);
    write_zip(path,
              {{"m/data.pkl", pickle}, {"m/byteorder", "big"}, {"m/data/0", swapped}, {"m/version", "3\n"}},
              deflate);
    CHECK(as_text(read(path).root.find("w")->as_tensor().to_bytes()) == data);
  }
}

TEST_CASE("damaged and foreign files are refused with the reason", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("bad.pt");
  const auto pickle = [](const std::string& tensor) { return "\x80\x02}" + text("w") + tensor + "s."; };
  const std::string good = pickle(tensor_pickle(floats("0", 4), 0, 4, 1));
  const std::string data(16, 'x');
  struct Case {
    std::vector<std::pair<std::string, std::string>> members;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {{{"m/data.pkl", good}, {"m/version", "3\n"}}, "not in the archive"},
      {{{"m/data.pkl", good}, {"m/data/0", data + "x"}, {"m/version", "3\n"}}, "17 bytes"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/version", "11\n"}}, "newer"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/byteorder", "mid"}}, "byteorder"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/data/0", data}}, "two members"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/constants.pkl", ""}}, "TorchScript"},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/code/x.py", ""}}, "TorchScript"},
      {{{"m/weights.npy", "x"}}, "data.pkl"},
      {{{"m/data.pkl", pickle(tensor_pickle(floats("0", 4), 1, 4, 1))}, {"m/data/0", data}},
       "beyond its storage"},
      {{{"m/data.pkl", pickle(tensor_pickle(floats("0", 4), 0, 3, 2))}, {"m/data/0", data}},
       "beyond its storage"},
      {{{"m/data.pkl", pickle(tensor_pickle(floats("../0", 4), 0, 3, 1))}, {"m/data/0", data}},
       "not in the archive"},
  };
  for (const Case& bad : cases) {
    write_zip(path, bad.members);
    try {
      read(path);
      FAIL(bad.reason);
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains(bad.reason));
    }
  }
  write_zip(path, {{"m/data.pkl", good}, {"m/data/0", data}, {"m/version", "3\n"}});
  const std::string whole = read_file(path);
  const size_t first = whole.find("PK\x01\x02");
  const size_t second = whole.find("PK\x01\x02", first + 4);
  std::string overlapping = whole;
  overlapping.replace(second + 42, 4, whole.substr(first + 42, 4));  // where the member's header is
  write_file(path, overlapping, true);
  CHECK_THROWS_WITH(read(path), Contains("overlap"));
  for (size_t length = 0; length < whole.size(); length += 7) {
    write_file(path, whole.substr(0, length), true);
    CHECK_THROWS_AS(read(path), Error);
  }
  std::string flipped = whole;
  flipped[whole.find(data) + 5] ^= 1;
  write_file(path, flipped, true);
  CHECK_THAT(message_of([&] { read(path); }, Errc::format), Contains("CRC-32"));
  write_file(path, "PYTORCH1" + std::string(600, '\0'), true);
  CHECK_THAT(message_of([&] { read(path); }, Errc::unsupported), Contains("preview"));
}

TEST_CASE("what is in an archive beside its checkpoint is a warning", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("more.pt");
  const std::string good = "\x80\x02}" + text("w") + tensor_pickle(floats("0", 4), 0, 4, 1) + "s.";
  const std::string data(16, 'x');
  struct Case {
    std::vector<std::pair<std::string, std::string>> members;
    std::vector<std::string> warnings;
  };
  const std::vector<Case> cases = {
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/.data/serialization_id", "1"}, {"m/data/", ""}}, {}},
      {{{"m/data.pkl", good + "hello"}, {"m/data/0", data}}, {"5 B behind the end of the pickle"}},
      {{{"m/data.pkl", "\x80\x02}." + good}, {"m/data/0", data}},
       {"behind the end of the pickle", "the archive member 'm/data/0' (16 B) is not read"}},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"m/data/1", data}, {"m/data/2", data}},
       {"2 archive members (32 B) are not read, such as 'm/data/1'"}},
      {{{"m/data.pkl", good}, {"m/data/0", data}, {"n/data.pkl", good}}, {"the archive member 'n/data.pkl'"}},
      {{{"m/data.pkl", good.substr(0, good.size() - 1) + text("w") + "K\1s" + text("w") + "K\2s."},
        {"m/data/0", data}},
       {"'w' is set twice in one dict: the first value, a tensor, is replaced, as in Python"}},
      {{{"m/data.pkl", "\x80\x02}(" + text("w") + tensor_pickle(floats("0", 4), 0, 4, 1) + text("v") + "]" +
                           text("w") + tensor_pickle(floats("0", 4), 0, 4, 1) + text("v") + "Nu."},
        {"m/data/0", data}},
       {"'w' is set twice in one dict: the first value, a tensor, is replaced, as in Python; 1 more value "
        "is"}},
  };
  for (const Case& one : cases) {
    write_zip(path, one.members);
    const std::vector<std::string> warnings = read(path).warnings;
    REQUIRE(warnings.size() == one.warnings.size());
    for (size_t i = 0; i < warnings.size(); ++i) CHECK_THAT(warnings[i], Contains(one.warnings[i]));
  }
}

TEST_CASE("an end record that counts other members than the directory has is damage", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("counted.pt");
  const auto open = [&](std::string bytes, size_t at, std::string_view field) {
    bytes.replace(at, field.size(), field);
    write_file(path, bytes, true);
    return message_of([&] { const zip::Archive archive(MappedFile::open(path)); }, Errc::format);
  };
  write_zip(path, {{"m/a", "1"}, {"m/b", "2"}, {"m/c", "3"}});
  const std::string whole = read_file(path);
  const size_t end = whole.size() - zip::end_size;
  CHECK_THAT(open(whole, end + 8, "\2\0\2\0"s), Contains("49 bytes behind the 2 members"));
  CHECK_THAT(open(whole, end + 8, "\0\0\0\0"s), Contains("147 bytes behind the 0 members"));
  CHECK_THAT(open(whole, end + 8, "\2"s), Contains("counts 2 members here, and 3 in all"));
  CHECK_THAT(open(whole, end + 10, "\2"s), Contains("counts 3 members here, and 2 in all"));

  zip::Layout layout;
  layout.add("m/data/0", 5ULL << 30);
  layout.add("m/data/1", 8);
  const std::string directory = layout.directory(std::vector<uint32_t>{0, 0});
  Transaction transaction;
  StagedFile& file = transaction.file(path, true);
  for (size_t i = 0; i < 2; ++i) file.write(layout.header_offset(i), as_bytes(layout.header(i, 0)));
  std::string small_count = directory;
  small_count.replace(directory.size() - zip::end_size + 8, 4, "\1\0\1\0"s);
  file.write(layout.directory_offset(), as_bytes(small_count));  // a sparse file: no blocks for the 5 GiB
  transaction.commit(false);
  CHECK_THAT(message_of([&] { const zip::Archive archive(MappedFile::open(path)); }, Errc::format),
             Contains("counts 1 members here, and 2 in all"));
}

TEST_CASE("a header that contradicts the directory is refused when its member is read", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("local.pt");
  const std::string pickle = "\x80\x02}" + text("w") + tensor_pickle(floats("0", 4), 0, 4, 1) + "s.";
  const bool deflate = GENERATE(false, true);
  write_zip(path, {{"m/data.pkl", pickle}, {"m/data/0", std::string(16, 'x')}}, deflate);
  const std::string whole = read_file(path);
  const size_t local = whole.find("PK\x03\x04", 4);
  const auto changed = [&](size_t at, const std::string& bytes, bool has_descriptor = false) {
    std::string out = whole;
    out.replace(local + at, bytes.size(), bytes);
    if (has_descriptor) out[local + 6] = zip::has_descriptor;
    write_file(path, out, true);
    return read(path).root.find("w")->as_tensor().to_bytes();
  };
  CHECK(changed(14, std::string(12, '\0'), true).size() == 16);
  CHECK_THROWS_WITH(changed(30, "m/data/1"), Contains("'m/data/0' is called 'm/data/1' in the header"));
  CHECK_THROWS_WITH(changed(18, "\x04"), Contains("'m/data/0' has 16 bytes (4 packed) in the header"));
  CHECK_THROWS_WITH(changed(22, "\x04"), Contains("'m/data/0' has 4 bytes"));
  CHECK_THROWS_WITH(changed(18, std::string(8, '\0')), Contains("'m/data/0' has 0 bytes (0 packed)"));
  CHECK_THROWS_WITH(changed(14, std::string(4, '\0')),
                    Contains("'m/data/0' has the CRC-32 00000000 and method"));
  CHECK_THROWS_WITH(changed(8, "\x0c"), Contains("and method 12 in the header before its data"));
}

TEST_CASE("legacy streams: shared storages, parts of storages, byte order", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("old.pt");
  const std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02M\xe9\x03."s;
  const auto system = [](bool little) {
    return "\x80\x02}" + text("little_endian") + (little ? "\x88s." : "\x89s.");
  };
  const std::string part = "(" + text("storage") + global("torch", "FloatStorage") + text("7") + text("cpu") +
                           "K\x04(" + text("8") + "K\x01K\x02ttQ";
  const std::string whole =
      "(" + text("storage") + global("torch", "FloatStorage") + text("7") + text("cpu") + "K\x04NtQ";
  const std::string object = "\x80\x02}(" + text("a") + tensor_pickle(whole, 0, 4, 1) + text("b") +
                             tensor_pickle(part, 1, 1, 1) + "u.";
  const std::string keys = "\x80\x02]" + text("7") + "a.";
  const std::string numbers = "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40"s;
  std::string swapped;
  for (size_t i = 0; i < numbers.size(); ++i) swapped.push_back(numbers[i / 4 * 4 + 3 - i % 4]);
  const std::string stream = magic + system(true) + object + keys + "\4\0\0\0\0\0\0\0"s + numbers;
  for (const std::string& content :
       {stream, stream + "trailing", magic + system(false) + object + keys + "\0\0\0\0\0\0\0\4"s + swapped}) {
    write_file(path, content, true);
    const Value root = read(path).root;
    CHECK(as_text(root.find("a")->as_tensor().to_bytes()) == numbers);
    CHECK(as_text(root.find("b")->as_tensor().to_bytes()) == numbers.substr(8, 4));
    CHECK(storage_of(*root.find("a")) == storage_of(*root.find("b")));
  }
  for (size_t length = 15; length < stream.size(); length += 11) {
    write_file(path, stream.substr(0, length), true);
    CHECK_THROWS_AS(read(path), Error);
  }
}

TEST_CASE("legacy streams: every storage is listed once", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("old.pt");
  const std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02M\xe9\x03."s;
  const auto tensor_of = [](const std::string& key) {
    return tensor_pickle(
        "(" + text("storage") + global("torch", "FloatStorage") + text(key) + text("cpu") + "K\x01NtQ", 0, 1,
        1);
  };
  const std::string object = "\x80\x02}(" + text("a") + tensor_of("7") + text("b") + tensor_of("8") + "u.";
  const std::string data = "\1\0\0\0\0\0\0\0\x00\x00\x80\x3f"s;
  const auto open = [&](const std::string& keys) {
    write_file(path,
               magic + "\x80\x02}" + text("little_endian") + "\x88s." + object + "\x80\x02](" + keys + "e." +
                   data + data,
               true);
    return read(path);
  };
  CHECK(open(text("7") + text("8")).root.find("b")->as_tensor().numel() == 1);
  CHECK(message_of([&] { open(text("7") + text("7")); }, Errc::format) ==
        "the storage '7' is listed twice in the list of storages, whose data is in its order");
  CHECK(message_of([&] { open(text("7")); }, Errc::format) ==
        "tensors use the storage '8', but it is not in the list of storages, and has no data");
}

TEST_CASE("views without elements may have any offset and strides", "[torch]") {
  const Folder folder;
  const fs::path path = folder.path("old.pt");
  const std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02M\xe9\x03."s;
  const std::string largest = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;  // 2^63 - 1
  const std::string part = "(" + text("storage") + global("torch", "FloatStorage") + text("7") + text("cpu") +
                           "K\x04(" + text("8") + "K\x01K\x02ttQ";
  const auto tensor = [&](const std::string& size, const std::string& strides) {
    return global("torch._utils", "_rebuild_tensor_v2") + "(" + part + largest + "(" + size + "t(" + strides +
           "t\x89" + global("collections", "OrderedDict") + ")RtR";
  };
  const std::string object = "\x80\x02}(" + text("a") + tensor("K\0"s, largest) + text("b") +
                             tensor("K\0"s + largest + largest, largest + largest + largest) + "u.";
  const std::string keys = "\x80\x02]" + text("7") + "a.";
  write_file(path,
             magic + "\x80\x02}" + text("little_endian") + "\x88s." + object + keys + "\4\0\0\0\0\0\0\0"s +
                 std::string(16, 'x'),
             true);
  const Value root = read(path).root;
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(root.find("a")->as_tensor().to_bytes().empty());
  CHECK(root.find("b")->as_tensor().shape() == Shape{0, most, most});
  CHECK(root.find("b")->as_tensor().permute({2, 1, 0}).slice(0, 5, 7).shape() == Shape{2, most, 0});
  CHECK(written_and_read(folder, root).find("b")->as_tensor().numel() == 0);
  CHECK(contiguous_strides({0, most, most}).size() == 3);
}

TEST_CASE("a small file cannot ask for much memory", "[torch][memory]") {
  constexpr uint64_t small = 16 << 20;
  const std::string many = std::string(64 << 20, 'N');
  const auto number = [](const std::string& bytes) {
    std::string out = "\x8b";
    append_le(out, static_cast<uint32_t>(bytes.size()));
    return out + bytes;
  };
  const std::string args =
      "(" + text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + "K\x04tq\x05";
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"a high stack", std::string(8 << 20, 'N')},
      {"marks", std::string(8 << 20, '(')},
      {"lists", std::string(1 << 20, ']')},
      {"persistent ids", args + repeat("h\x05Q", 1 << 18)},
      {"long integers", repeat(number(std::string(100, 'x')), 130'000)},
      {"arrays that are not filled", global("numpy.core.multiarray", "_reconstruct") + "q\1"s + "(" +
                                         global("numpy", "ndarray") + "K\0\x85"s + "C\1b"s + "tq\2" +
                                         repeat("h\1h\2R", 1 << 18)},
      {"a list that is copied", "](" + std::string(100'000, 'N') + "e\x85q\1"s + global("builtins", "list") +
                                    "q\2" + repeat("h\2h\1R", 200)},
  };
  for (const auto& [name, body] : cases) {
    INFO(name);
    const std::string pickle = "\x80\x04" + body + ".";
    MemoryBudget budget(0);
    pickle::UnpickleOptions options;
    options.budget = &budget;
    options.persistent_load = [](const Value&) {
      const Tensor elements = Tensor::from_bytes(DType::float32, {4}, Bytes(16));
      return std::make_shared<Object>(Object{"torch.storage", "FloatStorage", elements});
    };
    CHECK_THAT(message_of([&] { pickle::load(pickle, options); }, Errc::format), Contains("memory"));
    CHECK(budget.left() == budget.limit());  // what was not handed out is refunded
  }
  const Folder folder;
  const fs::path path = folder.path("bomb.pt");
  write_zip(path, {{"m/data.pkl", "\x80\x02" + many + "."}}, true);
  REQUIRE(fs::file_size(path) < 100'000);
  CHECK_THAT(message_of([&] { read(path); }, Errc::format),
             Contains("'m/data.pkl'") && Contains("64.0 MiB") && Contains("40."));
  write_zip(path, {{"m/data.pkl", "\x80\x02" + many.substr(0, small) + "."}}, true);
  CHECK_THAT(message_of([&] { read(path); }, Errc::format), Contains("memory"));
}

TEST_CASE("a deflated record is unpacked in a window", "[torch][memory]") {
  const Folder folder;
  const fs::path path = folder.path("zeros.pt");
  constexpr int64_t count = 24 << 20;  // floats
  std::string number = "J";
  append_le(number, static_cast<int32_t>(count));
  const std::string storage =
      "(" + text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") + number + "tQ";
  const std::string pickle = "\x80\x02}" + text("w") + global("torch._utils", "_rebuild_tensor_v2") + "(" +
                             storage + "K\0"s + number + "\x85K\x01\x85\x89" +
                             global("collections", "OrderedDict") + ")RtRs.";
  {
    std::string data(count * 4, '\0');
    for (size_t at = 0; at < data.size(); at += 1 << 16) data[at] = static_cast<char>(at >> 16);
    write_zip(path, {{"m/data.pkl", pickle}, {"m/data/0", data}, {"m/version", "3\n"}}, true);
  }
  REQUIRE(fs::file_size(path) < 1 << 20);
  const Value root = read(path).root;
  const Tensor& tensor = root.find("w")->as_tensor();
  CHECK(stored_size(*tensor.view()->storage) < 1 << 20);
  const auto first_of = [&](int64_t element) {
    Bytes one(4);
    tensor.read(element, one);
    return std::to_integer<int>(one[0]);
  };
  for (const int threads : {1, 3}) {
    const PeakMemory memory;
    const fs::path out = folder.path(fmt::format("copy{}.pt", threads));
    const auto writer = torch::make_writer(root, out, {});
    StreamingOptions options;
    options.threads = threads;
    write_one(*writer, options);
    CHECK(memory.growth() < 64 << 20);
    CHECK(fs::file_size(out) > count * 4);
  }
  CHECK(first_of(20 << 20) == 20 * 64 % 256);  // backwards, and on
  CHECK(first_of(1 << 20) == 64);
  CHECK(first_of((24 << 20) - (1 << 14)) == 255);

  // A member that is longer or shorter than it says.
  std::string content = read_file(path);
  const size_t entry = content.rfind("m/data/0") - 46;
  const size_t header = content.find("m/data/0") - 30;
  for (const int change : {-4, 4}) {
    std::string wrong = content;
    store_le(wrong.data() + entry + 24, static_cast<uint32_t>(count * 4 + change));
    store_le(wrong.data() + header + 22, static_cast<uint32_t>(count * 4 + change));
    write_file(path, wrong, true);
    const zip::Archive archive(MappedFile::open(path));
    const zip::Entry& record = *archive.find("m/data/0");
    const StoragePtr unpacked = archive.storage(record);
    std::byte last{};
    CHECK_THAT(message_of(
                   [&] {
                     unpacked->read(unpacked->size() - 1, {&last, 1});
                   },
                   Errc::format),
               Contains("'m/data/0'"));
    CHECK_THAT(message_of([&] { archive.verify(record); }, Errc::format), Contains("'m/data/0'"));
  }
}

TEST_CASE("lists of numbers and many tensors fit their budget", "[torch][memory]") {
  const std::string part = "(" + repeat("J\x12\x34\x56\x00"s, 1000) + "e";
  const Value list = plain("]" + repeat(part, 1000));
  CHECK(list.as_sequence().items.size() == 1'000'000);
  const Folder folder;
  const Value root = Value::dict();
  for (int i = 0; i < 20'000; ++i) root.as_dict().set(fmt::format("layer.{}.weight", i), number_tensor(3));
  CHECK(written_and_read(folder, root).as_dict().size() == 20'000);
}

TEST_CASE("opcodes are shown one at a time", "[torch][memory]") {
  const Folder folder;
  const auto names = [](const fs::path& path) {
    std::string out;
    torch::Disassembler opcodes(MappedFile::open(path));
    while (const auto opcode = opcodes.next())
      out +=
          fmt::format("{}{} {} {}", out.empty() ? "" : "; ", opcode->offset, opcode->name, opcode->argument);
    return out;
  };
  CHECK(names(folder.write("none", "")).empty());
  CHECK(names(folder.write("plain", "\x80\x02K\x07.and more")) == "0 PROTO 2; 2 BININT1 7; 4 STOP ");
  CHECK(names(folder.write("legacy", "L119547037146038801333356L\n.I1001\n.")) ==
        "0 LONG '119547037146038801333356L'; 27 STOP ; 28 INT '1001'; 34 STOP ");
  CHECK_THROWS_WITH(names(folder.write("cut", "\x80\x02K")), Contains("ends too early"));
  const fs::path path = folder.path("x.pt");
  write_zip(path, {{"m/version", "3"}}, true);
  CHECK_THROWS_WITH(names(path), Contains("has no data.pkl"));
  constexpr size_t count = 2 << 20;
  write_zip(path, {{"m/data.pkl", "\x80\x02(" + std::string(count, 'N') + "l."}}, true);
  const PeakMemory memory;
  torch::Disassembler opcodes(MappedFile::open(path));
  size_t found = 0;
  while (opcodes.next()) ++found;
  CHECK(found == count + 4);
  CHECK(memory.growth() < (8 << 20));
}

TEST_CASE("legacy streams of every protocol begin with the magic number", "[torch]") {
  const std::string number = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  for (const std::string& magic :
       {"L119547037146038801333356L\n."s, "\x80\x03" + number, "\x80\x05\x95\x0d\0\0\0\0\0\0\0"s + number}) {
    CHECK(torch::legacy_magic_size(magic + "rest") == magic.size());
    for (size_t length = 0; length < magic.size(); ++length)
      CHECK(torch::legacy_magic_size(magic.substr(0, length)) == 0);
  }
  CHECK(torch::legacy_magic_size("\x80\x06" + number) == 0);
}

TEST_CASE("a zip layout beyond 4 GiB says so in zip64 fields", "[torch]") {
  zip::Layout layout;
  const uint64_t large = 5ULL << 30;
  layout.add("m/data.pkl", 10);
  CHECK(layout.add("m/data/0", large) % zip::Layout::alignment == 0);
  const uint64_t after = layout.add("m/version", 2);
  CHECK(after > large);
  CHECK(after % zip::Layout::alignment == 0);
  const std::string header = layout.header(1, 0x12345678);
  CHECK(layout.header_offset(1) + header.size() == align_up(layout.header_offset(1) + header.size(), 64));
  CHECK(load_le<uint32_t>(header.data() + 18) == 0xffffffff);
  CHECK(load_le<uint64_t>(header.data() + 30 + 8 + 4) == large);

  const Folder folder;
  Transaction transaction;
  StagedFile& file = transaction.file(folder.path("big.zip"), false);
  const std::vector<uint32_t> crcs = {1, 2, 3};
  const std::string directory = layout.directory(crcs);
  CHECK(layout.directory_offset() + directory.size() == layout.total_size());
  for (size_t i = 0; i < 3; ++i) file.write(layout.header_offset(i), as_bytes(layout.header(i, crcs[i])));
  file.write(layout.directory_offset(), as_bytes(directory));  // a sparse file: no blocks for the 5 GiB
  transaction.commit(false);
  const zip::Archive archive(MappedFile::open(folder.path("big.zip")));
  REQUIRE(archive.entries().size() == 3);
  CHECK(archive.entries()[1].size == large);
  CHECK(archive.entries()[2].header_offset > large);
  CHECK(archive.storage(archive.entries()[1])->size() == large);
  CHECK(archive.storage(archive.entries()[1])->crc32() == 2U);
}
