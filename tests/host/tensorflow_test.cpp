#include <leveldb/env.h>
#include <leveldb/iterator.h>
#include <leveldb/options.h>
#include <leveldb/table.h>
#include <leveldb/table_builder.h>

#include <catch2/catch.hpp>
#include <map>

#include "host/base/crc32c.hpp"
#include "host/checkpoint/make_writer.hpp"
#include "host/checkpoint/open.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "host/formats/tensorflow/index.hpp"
#include "host/formats/tensorflow/join_slices.hpp"
#include "host/formats/tensorflow/proto.hpp"
#include "host/formats/tensorflow/state_file.hpp"
#include "host/formats/tensorflow/table.hpp"
#include "tests/host/folder.hpp"
#include "tests/host/peak_memory.hpp"
#include "tests/host/write_one.hpp"

using namespace cbk;
namespace tf = cbk::tensorflow;
namespace proto = cbk::tensorflow::proto;

namespace {

Tensor counting(DType dtype, const Shape& shape) {
  Bytes bytes(static_cast<size_t>(numel_of(shape)) * size_of(dtype));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 257);
  return Tensor::from_bytes(dtype, shape, std::move(bytes));
}

Value texts(const Shape& shape, const std::vector<std::string_view>& list) {
  const std::string bytes = tf::encode_texts(list).bytes;
  const ByteView view = as_bytes(bytes);
  return tf::to_value(
      {tf::find("string"), shape,
       Tensor::from_bytes(DType::uint8, {static_cast<int64_t>(bytes.size())}, {view.begin(), view.end()})});
}

std::vector<std::string> texts_of(const Value& value) {
  const tf::ForeignTensor tensor = tf::to_foreign(value);
  const Bytes bytes = tensor.elements.to_bytes();
  const auto views = tf::decode_texts(bytes, numel_of(tensor.shape));
  return {views.begin(), views.end()};
}

void save(const Value& root, const fs::path& target, WriteOptions options = {}) {
  if (options.format.empty()) options.format = "tensorflow";
  const auto writer = make_writer(root, target, options);
  write_one(*writer);
}

Value dict(std::initializer_list<std::pair<const char*, Value>> entries) {
  const Value out = Value::dict();
  for (const auto& [key, value] : entries) out.as_dict().set(key, value);
  return out;
}

/// A bundle made by hand: whatever an index may say.
struct Bundle {
  proto::Header header;
  std::map<std::string, std::string> entries;
  std::string data;

  Bundle() { header.set_num_shards(1); }

  static proto::Entry describe(DType dtype, const Shape& shape) {
    proto::Entry entry;
    entry.set_dtype(tf::find(dtype)->number);
    for (const int64_t extent : shape) entry.mutable_shape()->add_dim()->set_size(extent);
    return entry;
  }
  void place(const std::string& key, proto::Entry entry, std::string_view bytes) {
    entry.set_offset(static_cast<int64_t>(data.size()));
    entry.set_size(static_cast<int64_t>(bytes.size()));
    if (entry.crc32c() == 0) entry.set_crc32c(masked_crc32c(crc32c(as_bytes(bytes))));
    data += bytes;
    entries[key] = entry.SerializeAsString();
  }
  void add(const std::string& key, const Tensor& tensor) {
    const Bytes bytes = tensor.to_bytes();
    place(key, describe(tensor.dtype(), tensor.shape()), as_text(bytes));
  }
  /// A partitioned variable: slices of `tensor` from start to stop; a stop of -1 says "all" in that dim.
  void add_slices(const std::string& name, const Tensor& tensor,
                  const std::vector<std::pair<Shape, Shape>>& boxes) {
    proto::Entry whole = describe(tensor.dtype(), tensor.shape());
    for (const auto& [start, stop] : boxes) {
      std::vector<tf::Extent> extents;
      Tensor part = tensor;
      auto& slice = *whole.add_slices();
      for (size_t dim = 0; dim < start.size(); ++dim) {
        auto& extent = *slice.add_extent();
        extents.emplace_back();
        if (stop[dim] < 0) continue;
        extent.set_start(start[dim]);
        extent.set_length(stop[dim] - start[dim]);
        extents.back() = {start[dim], stop[dim] - start[dim]};
        part = part.slice(static_cast<int64_t>(dim), start[dim], stop[dim]);
      }
      add(tf::slice_key(name, extents), part);
    }
    entries[name] = whole.SerializeAsString();
  }
  fs::path write(const Folder& folder, const std::string& name, bool compressed = false,
                 bool one_block = false) const {
    class Sink final : public leveldb::WritableFile {
     public:
      leveldb::Status Append(const leveldb::Slice& part) override {
        text.append(part.data(), part.size());
        return {};
      }
      leveldb::Status Close() override { return {}; }
      leveldb::Status Flush() override { return {}; }
      leveldb::Status Sync() override { return {}; }
      std::string text;
    } sink;
    leveldb::Options options;
    options.compression = compressed ? leveldb::kSnappyCompression : leveldb::kNoCompression;
    options.block_size = one_block ? 1 << 20 : 256;  // or many
    if (one_block) options.block_restart_interval = 1 << 20;
    leveldb::TableBuilder builder(options, &sink);
    builder.Add("", header.SerializeAsString());
    for (const auto& [key, value] : entries) builder.Add(key, value);
    REQUIRE(builder.Finish().ok());
    folder.write(name + ".index", sink.text);
    folder.write(name + ".data-00000-of-00001", data);
    return folder.path(name);
  }
};

/// A file in memory for libleveldb.
class Source final : public leveldb::RandomAccessFile {
 public:
  explicit Source(std::string text) : text_(std::move(text)) {}
  leveldb::Status Read(uint64_t offset, size_t size, leveldb::Slice* result,
                       char* /*scratch*/) const override {
    *result = {text_.data() + offset, size};
    return {};
  }

 private:
  std::string text_;
};

std::map<std::string, std::string> read_with_leveldb(const std::string& text) {
  Source source(text);
  leveldb::Options options;
  options.paranoid_checks = true;
  leveldb::Table* opened = nullptr;
  REQUIRE(leveldb::Table::Open(options, &source, text.size(), &opened).ok());
  const std::unique_ptr<leveldb::Table> table(opened);
  leveldb::ReadOptions read;
  read.verify_checksums = true;
  const std::unique_ptr<leveldb::Iterator> entry(table->NewIterator(read));
  std::map<std::string, std::string> out;
  for (entry->SeekToFirst(); entry->Valid(); entry->Next())
    out[entry->key().ToString()] = entry->value().ToString();
  REQUIRE(entry->status().ok());
  return out;
}

Value variable(const fs::path& prefix, std::string_view name) {
  return open_checkpoint(prefix).root.as_dict().at(name);
}

}  // namespace

TEST_CASE("tensorflow: what is written is read back, under any name of it", "[tensorflow]") {
  const Folder folder;
  const Value root = Value::dict();
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (tf::find(dtype) != nullptr)
      root.as_dict().set(fmt::format("v/{}", name_of(dtype)), counting(dtype, {3, 5}));
  }
  root.as_dict().set("global_step", counting(DType::int64, {}));
  root.as_dict().set("empty", counting(DType::float32, {0, 4}));
  root.as_dict().set("turned", counting(DType::float32, {300, 700}).transpose(0, 1));
  root.as_dict().set("tail", counting(DType::float64, {100}));
  root.as_dict().set("names", texts({2, 2}, {"", "a", std::string_view("\0\xff", 2), "long enough"}));
  root.as_dict().set("none", texts({0}, {}));
  root.as_dict().set("q", tf::to_value({tf::find("qint8"), {2, 3}, counting(DType::int8, {2, 3})}));
  const bool sharded = GENERATE(false, true);
  WriteOptions options;
  if (sharded) options.shard_size = 100'000;
  save(root, folder.path(sharded ? "m.ckpt-7.index" : "m.ckpt-7"), options);
  const std::string data = "m.ckpt-7.data-0000";
  CHECK(folder.names() ==
        (sharded ? std::vector<std::string>{"checkpoint", data + "0-of-00003", data + "1-of-00003",
                                            data + "2-of-00003", "m.ckpt-7.index"}
                 : std::vector<std::string>{"checkpoint", data + "0-of-00001", "m.ckpt-7.index"}));
  CHECK(read_file(folder.path("checkpoint")) ==
        "model_checkpoint_path: \"m.ckpt-7\"\nall_model_checkpoint_paths: \"m.ckpt-7\"\n");
  const auto table = read_with_leveldb(read_file(folder.path("m.ckpt-7.index")));
  CHECK(table.size() == root.as_dict().size() + 1);
  CHECK(table.at("") == (sharded ? "\x08\x03\x1a\x02\x08\x01" : "\x08\x01\x1a\x02\x08\x01"));
  if (!sharded) {
    // dtype, a scalar's shape, offset, size and checksum; fields of 0 are left out.
    const Bytes step = root.find("global_step")->as_tensor().to_bytes();
    proto::Entry entry;
    REQUIRE(entry.ParseFromString(table.at("global_step")));
    CHECK(table.at("global_step").substr(0, 4) == std::string_view("\x08\x09\x12\0", 4));
    CHECK(entry.crc32c() == masked_crc32c(crc32c(step)));
  }
  for (const char* name : {"m.ckpt-7", "m.ckpt-7.index", ""}) {
    const Checkpoint back = open_checkpoint(folder.path(name));
    CHECK(back.format == "tensorflow");
    CHECK(back.files.size() == (sharded ? 4 : 2));
    CHECK(back.root.as_dict().size() == root.as_dict().size());
    std::string last;
    for (const auto& [key, value] : back.root.as_dict().entries()) {
      CAPTURE(key.as_string());
      CHECK(last < key.as_string());
      last = key.as_string();
      const Value& wanted = *root.find(last);
      if (value.is(Value::Kind::tensor)) {
        CHECK(value.as_tensor().shape() == wanted.as_tensor().shape());
        CHECK(value.as_tensor().dtype() == wanted.as_tensor().dtype());
        CHECK(value.as_tensor().to_bytes() == wanted.as_tensor().to_bytes());
      } else {
        CHECK(value.as_object().repr == wanted.as_object().repr);
        CHECK(tf::to_foreign(value).elements.to_bytes() == tf::to_foreign(wanted).elements.to_bytes());
      }
    }
    CHECK(texts_of(*back.root.find("names")) == texts_of(*root.find("names")));
  }
}

TEST_CASE("tensorflow: other formats leave strings out, with a warning", "[tensorflow]") {
  const Folder folder;
  const Value root = dict({{"w", counting(DType::float32, {2})}, {"graph", texts({}, {"x"})}});
  WriteOptions options;
  options.format = GENERATE("safetensors", "torch", "h5");
  const auto writer = make_writer(root, folder.path("x"), options);
  REQUIRE(writer->warnings().size() == 1);
  CHECK_THAT(writer->warnings().front(), Catch::Contains("'graph' is left out"));
  write_one(*writer);
  CHECK(open_checkpoint(folder.path("x")).root.as_dict().size() == 1);
  root.as_dict().set("q", tf::to_value({tf::find("qint8"), {2}, counting(DType::int8, {2})}));
  CHECK_THROWS_WITH(make_writer(root, folder.path("y"), options), Catch::Contains("'q' (qint8)"));
}

TEST_CASE("tensorflow: flat H5 holds texts when asked to", "[tensorflow]") {
  const Folder folder;
  const std::vector<std::vector<std::string>> lists = {{"one", "", "ünï"},
                                                       {"\xff", "b"},
                                                       {std::string("a\0b", 3), ""},
                                                       {},
                                                       std::vector<std::string>(5000, std::string(30, 'x'))};
  const Value root = dict({{"w", counting(DType::float32, {40})}, {"v", counting(DType::float32, {40})}});
  for (size_t i = 0; i < lists.size(); ++i) {
    const std::vector<std::string_view> views(lists[i].begin(), lists[i].end());
    root.as_dict().set(fmt::format("texts/{}", i), texts({static_cast<int64_t>(views.size())}, views));
  }
  root.as_dict().set("scalar", texts({}, {"alone"}));
  WriteOptions options;
  options.format = "h5";
  options.h5_version = "flat";
  options.keep_texts = true;
  if (GENERATE(false, true)) options.shard_size = 200;
  save(root, folder.path("x"), options);
  const Checkpoint back = open_checkpoint(folder.path("x"));
  CHECK(back.root.as_dict().size() == root.as_dict().size());
  for (size_t i = 0; i < lists.size(); ++i) {
    const Value& found = *back.root.find(fmt::format("texts/{}", i));
    CHECK(texts_of(found) == lists[i]);
    CHECK(tf::to_foreign(found).shape == Shape{static_cast<int64_t>(lists[i].size())});
  }
  CHECK(tf::to_foreign(*back.root.find("scalar")).shape.empty());
  CHECK(texts_of(*back.root.find("scalar")) == std::vector<std::string>{"alone"});
  CHECK(back.root.find("w")->as_tensor().to_bytes() == root.find("w")->as_tensor().to_bytes());
  save(back.root, folder.path("m"));
  CHECK(open_checkpoint(folder.path("m")).root.as_dict().size() == root.as_dict().size());
  options.shard_size.reset();
  options.h5_version = "0.5";
  CHECK_THROWS_WITH(make_writer(root, folder.path("y"), options), Catch::Contains("flat H5"));
}

TEST_CASE("tensorflow: what cannot be a bundle is refused before anything is written", "[tensorflow]") {
  const Folder folder;
  const Tensor one = Tensor::full(DType::float32, {1}, 1);
  const auto refused = [&](const Value& root, const std::string& reason, const fs::path& target) {
    CHECK_THROWS_WITH(save(root, target), Catch::Contains(reason));
    CHECK(folder.names().empty());
  };
  const fs::path target = folder.path("x");
  refused(one, "this is a tensor", target);
  refused(dict({{"a", one}, {"step", 3}}), "'step' (int)", target);
  refused(dict({{"", one}}), "cannot be named", target);
  refused(dict({{"\xff", one}}), "UTF-8", target);
  refused(dict({{"a", Tensor::full(DType::float8_e8m0fnu, {1}, 1)}}), "'a' (float8_e8m0fnu)", target);
  refused(dict({{"a.b", texts({}, {"x"})}, {"a", dict({{"b", one}})}}), "'a.b'", target);
  refused(dict({{"a", one}}), "is a folder", folder.path());
}

TEST_CASE("tensorflow: an old checkpoint is replaced as a whole, and the state file goes on",
          "[tensorflow]") {
  const Folder folder;
  const Tensor big = counting(DType::float32, {100});
  WriteOptions options;
  options.shard_size = 100;
  save(dict({{"a", big}, {"b", big}}), folder.path("x-1"), options);
  save(dict({{"a", big}}), folder.path("x-2"));
  CHECK(tf::read_state(folder.path("checkpoint")).all == std::vector<std::string>{"x-1", "x-2"});
  CHECK_THROWS_WITH(save(dict({{"a", big}}), folder.path("x-1")), Catch::Contains("x-1.index' exists"));
  options.shard_size.reset();
  options.overwrite = true;
  save(dict({{"c", big}}), folder.path("x-1"), options);
  CHECK(tf::read_state(folder.path("checkpoint")).latest == "x-1");
  CHECK(tf::read_state(folder.path("checkpoint")).all == std::vector<std::string>{"x-2", "x-1"});
  CHECK(folder.names() == std::vector<std::string>{"checkpoint", "x-1.data-00000-of-00001", "x-1.index",
                                                   "x-2.data-00000-of-00001", "x-2.index"});
  CHECK(open_checkpoint(folder.path()).root.find("c") != nullptr);
  SECTION("the latest is one of them, whether the list has it or not") {
    folder.write("checkpoint", "model_checkpoint_path: \"/old/x-5\"");
    save(dict({{"a", big}}), folder.path("x-6"));
    CHECK(tf::read_state(folder.path("checkpoint")).all == std::vector<std::string>{"/old/x-5", "x-6"});
    folder.write("checkpoint", "model_checkpoint_path: \"" + folder.path("x-6").string() + "\"");
    save(dict({{"a", big}}), folder.path("x-6"), options);
    CHECK(tf::read_state(folder.path("checkpoint")).all == std::vector<std::string>{"x-6"});
  }
  folder.write("checkpoint", "something else");
  CHECK_THROWS_WITH(save(dict({{"a", big}}), folder.path("y")), Catch::Contains("not one of TensorFlow"));
}

TEST_CASE("tensorflow: data without an index, as a killed run leaves it, is in nobody's way",
          "[tensorflow]") {
  const Folder folder;
  const Value root = dict({{"a", counting(DType::float32, {100})}});
  save(root, folder.path("x"));
  fs::remove(folder.path("x.index"));
  folder.write("x.data-00000-of-00001", "a part");
  WriteOptions options;
  options.format = "tensorflow";
  const auto writer = make_writer(root, folder.path("x"), options);
  REQUIRE(writer->warnings().size() == 1);
  CHECK_THAT(writer->warnings().front(), Catch::Contains("'x.data-00000-of-00001' has no index"));
  write_one(*writer);
  CHECK(open_checkpoint(folder.path("x")).root.find("a")->as_tensor().to_bytes() ==
        root.find("a")->as_tensor().to_bytes());
  CHECK_THROWS_WITH(save(root, folder.path("x")), Catch::Contains("x.index' exists"));
}

TEST_CASE("tensorflow: state files", "[tensorflow]") {
  const Folder folder;
  Bundle bundle;
  bundle.add("a", counting(DType::int8, {1}));
  bundle.write(folder, "m\"1");
  const auto found = [&](const std::string& text) {
    folder.write("checkpoint", text);
    return tf::latest_in(folder.path(), {})->path().filename().string();
  };
  CHECK(found(R"(model_checkpoint_path: "m\"1" all_model_checkpoint_timestamps: 1.5)") == "m\"1.index");
  CHECK(found(R"(model_checkpoint_path: '/gone/before/m"1')") == "m\"1.index");
  CHECK(found("# a comment\nmodel_checkpoint_path: \"m\" '\\0421'") == "m\"1.index");
  CHECK_THROWS_WITH(found(R"(model_checkpoint_path: "m2")"), Catch::Contains("'m2'"));
  CHECK_THROWS_WITH(found(""), Catch::Contains("names no checkpoint"));
  CHECK_THROWS_WITH(open_checkpoint(folder.path("m\"1.data-00000-of-00001")), Catch::Contains("a data file"));
  fs::rename(folder.path("m\"1.index"), folder.path("old"));
  CHECK_THROWS_WITH(open_checkpoint(folder.path("old")), Catch::Contains("V1"));
}

TEST_CASE("tensorflow: keys of slices", "[tensorflow]") {
  const std::string key = tf::slice_key(std::string("a\0\xff/b", 5), {{0, 100}, {}, {-1, 63}, {-65, 64}});
  CHECK(key == std::string("\0a\0\xff\xff\0/b\0\1\1\4"
                           "\x80\xc0\x64"
                           "\x80\x7f"
                           "\x7f\xbf"
                           "\x3f\xbf\xc0\x40",
                           23));
  CHECK(tf::name_in_slice_key(key) == std::string("a\0\xff/b", 5));
  CHECK_FALSE(tf::name_in_slice_key(std::string("\0ab", 3)));
  CHECK(tf::slice_key("", {{INT64_MAX, INT64_MIN + 1}}) ==
        std::string("\0\0\1\1\1\xff\xc0\x7f\xff\xff\xff\xff\xff\xff\xff\0\x3f\x80\0\0\0\0\0\0\1", 25));
}

TEST_CASE("tensorflow: compressed tables, many blocks, big-endian data", "[tensorflow]") {
  const Folder folder;
  const bool big_endian = GENERATE(false, true);
  Bundle bundle;
  bundle.header.set_endianness(big_endian ? 1 : 0);
  std::map<std::string, Tensor> wanted;
  for (int i = 0; i < 200; ++i) {
    const DType dtype =
        std::array{DType::float32, DType::complex64, DType::int16, DType::uint8}[static_cast<size_t>(i % 4)];
    const Tensor tensor = counting(dtype, {2, i % 7});
    const std::string name = fmt::format("layer_{:03}/kernel", i);
    wanted.emplace(name, tensor);
    Bytes bytes = tensor.to_bytes();
    const size_t part = is_complex(dtype) ? size_of(dtype) / 2 : size_of(dtype);
    for (auto at = bytes.begin(); big_endian && at < bytes.end(); at += static_cast<ptrdiff_t>(part)) {
      std::reverse(at, at + static_cast<ptrdiff_t>(part));
    }
    bundle.place(name, Bundle::describe(dtype, tensor.shape()), as_text(bytes));
  }
  const std::vector<std::string_view> list = {"ab", "", "cde"};
  tf::EncodedTexts encoded = tf::encode_texts(list);
  proto::Entry entry = Bundle::describe(DType::uint8, {3});
  entry.set_dtype(7);
  if (big_endian) {
    // The lengths in the checksum, and the checksum of the lengths, are big-endian numbers.
    const std::string lengths("\0\0\0\2\0\0\0\0\0\0\0\3", 12);
    const uint32_t first = crc32c(as_bytes(lengths));
    store_le(encoded.bytes.data() + 3, __builtin_bswap32(masked_crc32c(first)));
    encoded.crc = masked_crc32c(crc32c(as_bytes(encoded.bytes).subspan(3), first));
  }
  entry.set_crc32c(encoded.crc);
  bundle.place("texts", entry, encoded.bytes);
  const Checkpoint checkpoint = open_checkpoint(bundle.write(folder, "m", GENERATE(false, true)));
  CHECK(checkpoint.root.as_dict().size() == wanted.size() + 1);
  for (const auto& [name, tensor] : wanted) {
    CAPTURE(name);
    CHECK(checkpoint.root.find(name)->as_tensor().to_bytes() == tensor.to_bytes());
  }
  CHECK(texts_of(*checkpoint.root.find("texts")) == std::vector<std::string>{"ab", "", "cde"});
}

TEST_CASE("tensorflow: partitioned variables are joined", "[tensorflow]") {
  const Folder folder;
  const Tensor matrix = counting(DType::float32, {9, 6});
  using Boxes = std::vector<std::pair<Shape, Shape>>;
  const Boxes boxes = GENERATE(
      Boxes{{{0, 0}, {4, -1}}, {{4, 0}, {9, -1}}}, Boxes{{{0, 0}, {-1, -1}}},
      Boxes{{{4, 3}, {9, 6}}, {{0, 0}, {4, 3}}, {{0, 3}, {4, 6}}, {{4, 0}, {9, 3}}},
      // A pinwheel: no straight cut goes through.
      Boxes{{{0, 0}, {3, 4}}, {{0, 4}, {6, 6}}, {{6, 2}, {9, 6}}, {{3, 0}, {9, 2}}, {{3, 2}, {6, 4}}},
      Boxes{{{0, 0}, {0, 6}}, {{0, 0}, {9, 6}}});
  Bundle bundle;
  bundle.add_slices("m/w", matrix, boxes);
  bundle.add("m/z", matrix);
  const fs::path prefix = bundle.write(folder, "p");
  const Checkpoint checkpoint = open_checkpoint(prefix);
  CHECK(checkpoint.root.as_dict().size() == 2);  // the slices are not listed
  const Tensor joined = checkpoint.root.find("m/w")->as_tensor();
  CHECK(joined.shape() == matrix.shape());
  CHECK(joined.to_bytes() == matrix.to_bytes());
  CHECK(joined.transpose(0, 1).to_bytes() == matrix.transpose(0, 1).to_bytes());
  save(checkpoint.root, folder.path("whole"));
  CHECK(variable(folder.path("whole"), "m/w").as_tensor().to_bytes() == matrix.to_bytes());
}

TEST_CASE("tensorflow: partitioned texts", "[tensorflow]") {
  const Folder folder;
  Bundle bundle;
  proto::Entry whole = Bundle::describe(DType::uint8, {2, 3});
  whole.set_dtype(7);
  const std::vector<std::vector<std::string_view>> columns = {{"a", "dd"}, {"bb", "c", "", "f"}};
  for (int64_t column : {0, 1}) {
    const tf::Extent extent{column, column + 1};
    auto& slice = *whole.add_slices();
    slice.add_extent();
    slice.add_extent()->set_start(column);
    slice.mutable_extent(1)->set_length(*extent.length);
    const tf::EncodedTexts encoded = tf::encode_texts(columns[static_cast<size_t>(column)]);
    proto::Entry entry = Bundle::describe(DType::uint8, {2, *extent.length});
    entry.set_dtype(7);
    entry.set_crc32c(encoded.crc);
    bundle.place(tf::slice_key("t", {{}, extent}), entry, encoded.bytes);
  }
  bundle.entries["t"] = whole.SerializeAsString();
  CHECK(texts_of(variable(bundle.write(folder, "p"), "t")) ==
        std::vector<std::string>{"a", "bb", "c", "dd", "", "f"});
}

TEST_CASE("tensorflow: slices that do not fit are reported in one line with the variable's name",
          "[tensorflow]") {
  const Folder folder;
  const Tensor vector = counting(DType::int32, {10});
  const auto refused = [&](const std::string& reason, const std::vector<std::pair<Shape, Shape>>& boxes,
                           const std::function<void(Bundle&)>& change = {}) {
    Bundle bundle;
    bundle.add_slices("emb/part", vector, boxes);
    if (change) change(bundle);
    CHECK_THROWS_WITH(open_checkpoint(bundle.write(folder, "p")),
                      Catch::Contains("variable 'emb/part': ") && Catch::Contains(reason));
  };
  refused("leave out [4:5]", {{{0}, {4}}, {{5}, {10}}});
  refused("leave out [9:10]", {{{0}, {9}}});
  refused("leave out [5:6]", {{{0}, {5}}, {{6}, {10}}});
  refused("overlap in [3:4]", {{{0}, {4}}, {{3}, {10}}});
  refused("its slice [0:5] is repeated", {{{0}, {5}}, {{0}, {5}}});
  refused("its slice [4:10] is missing", {{{0}, {4}}, {{4}, {10}}}, [](Bundle& bundle) {
    bundle.entries.erase(tf::slice_key("emb/part", {{4, 6}}));
  });
  refused("is int64 [4] instead of int32 [4]", {{{0}, {4}}, {{4}, {10}}}, [](Bundle& bundle) {
    bundle.add(tf::slice_key("emb/part", {{0, 4}}), counting(DType::int64, {4}));
  });
}

TEST_CASE("tensorflow: an index that lies is refused with the variable's name", "[tensorflow]") {
  const Folder folder;
  const std::vector<std::pair<std::function<void(proto::Entry&)>, std::string>> changes = {
      {[](auto& e) { e.set_size(7); }, "variable 'b': float32 [2, 3] takes 24 bytes, not 7"},
      {[](auto& e) { e.set_offset(1000); }, "cut short"},
      {[](auto& e) { e.set_offset(-1); }, "variable 'b': 24 bytes at byte -1"},
      {[](auto& e) { e.set_shard_id(1); }, "variable 'b': its bytes should be in data file 1"},
      {[](auto& e) { e.mutable_shape()->set_unknown_rank(true); }, "variable 'b': its shape"},
      {[](auto& e) { e.mutable_shape()->mutable_dim(0)->set_size(-2); }, "variable 'b': an extent of -2"},
      {[](auto& e) {
         e.mutable_shape()->mutable_dim(0)->set_size(INT64_MAX);
         e.mutable_shape()->mutable_dim(1)->set_size(0);
       },
       "too large"},
      {[](auto& e) {
         e.set_dtype(7);
         e.mutable_shape()->mutable_dim(0)->set_size(1000);
       },
       "variable 'b': 3000 texts in 24 bytes"},
  };
  for (const auto& [change, reason] : changes) {
    Bundle bundle;
    bundle.add("a", counting(DType::float32, {2}));
    proto::Entry entry = Bundle::describe(DType::float32, {2, 3});
    bundle.place("b", entry, std::string(24, 'x'));
    REQUIRE(entry.ParseFromString(bundle.entries["b"]));
    change(entry);
    bundle.entries["b"] = entry.SerializeAsString();
    CHECK_THROWS_WITH(open_checkpoint(bundle.write(folder, "p")), Catch::Contains(reason));
  }
  const auto refused = [&](const std::string& reason, const std::function<void(Bundle&)>& change) {
    Bundle bundle;
    bundle.add("a", counting(DType::float32, {2}));
    change(bundle);
    CHECK_THROWS_WITH(open_checkpoint(bundle.write(folder, "p")),
                      Catch::Contains(reason) && Catch::Contains("p.index"));
  };
  refused("newer reader", [](Bundle& b) { b.header.mutable_version()->set_min_consumer(2); });
  refused("refuses readers of version 1,",
          [](Bundle& b) { b.header.mutable_version()->add_bad_consumers(1); });
  refused("0 data files", [](Bundle& b) { b.header.set_num_shards(0); });
  refused("3 files, but 1 is missing: 'p.data-00000-of-00003'; there is 'p.data-00000-of-00001'",
          [](Bundle& b) { b.header.set_num_shards(3); });
  refused("byte order", [](Bundle& b) { b.header.set_endianness(2); });
  refused("UTF-8", [](Bundle& b) { b.add("\xff", counting(DType::int8, {1})); });
  refused("not an entry", [](Bundle& b) { b.entries["b"] = "\xff\xff"; });
}

TEST_CASE("tensorflow: variables that overlap are refused, bytes behind them a warning", "[tensorflow]") {
  const Folder folder;
  Bundle bundle;
  bundle.add("a", counting(DType::float32, {8}));
  bundle.add("b", counting(DType::float32, {8}));
  bundle.add_slices("s", counting(DType::float32, {8}), {{{0}, {4}}, {{4}, {8}}});
  const auto moved = [&](const std::string& key, int64_t offset) {
    Bundle out = bundle;
    proto::Entry entry;
    REQUIRE(entry.ParseFromString(out.entries.at(key)));
    entry.set_offset(offset);
    out.entries[key] = entry.SerializeAsString();
    return out.write(folder, "p");
  };
  CHECK(open_checkpoint(bundle.write(folder, "p")).warnings.empty());
  CHECK(open_checkpoint(moved("b", 0)).warnings.empty());  // a tie; and nobody says that a hole is wrong
  const std::vector<std::tuple<std::string, int64_t, std::string>> cases = {
      {"b", 16, "the bytes of 'a' and 'b' overlap, at byte 16 of data file 0"},
      {"a", 60, "the bytes of 'b' and 'a' overlap, at byte 60 of data file 0"},
      {tf::slice_key("s", {{0, 4}}), 84,
       "the bytes of a slice of 's' and a slice of 's' overlap, at byte 84"},
      {tf::slice_key("s", {{0, 4}}), 8, "the bytes of 'a' and a slice of 's' overlap, at byte 8"},
  };
  for (const auto& [key, offset, reason] : cases)
    CHECK_THROWS_WITH(open_checkpoint(moved(key, offset)), Catch::Contains(reason));
  bundle.data += std::string(400, 'x');
  const Checkpoint longer = open_checkpoint(bundle.write(folder, "p"));
  REQUIRE(longer.warnings.size() == 1);
  CHECK_THAT(longer.warnings.front(),
             Catch::StartsWith("400 B behind the last variable in 'p.data-00000-of-00001' (byte 96)"));
}

TEST_CASE("tensorflow: names that a short index repeats are refused", "[tensorflow]") {
  const Folder folder;
  Bundle bundle;
  const std::string common(20'000, 'n');  // a table holds what keys share once per block
  for (int i = 0; i < 6000; ++i)
    bundle.entries[common + std::to_string(i)] = Bundle::describe(DType::float32, {0}).SerializeAsString();
  const fs::path prefix = bundle.write(folder, "long", false, true);
  REQUIRE(fs::file_size(prefix.string() + ".index") < 1'000'000);
  const PeakMemory peak;
  CHECK_THROWS_WITH(open_checkpoint(prefix), Catch::Contains("would take more than"));
  CHECK(peak.growth() < 60'000'000);
}

TEST_CASE("tensorflow: variants and unknown types are left out with a warning", "[tensorflow]") {
  const Folder folder;
  Bundle bundle;
  proto::Entry entry = Bundle::describe(DType::float32, {});
  const auto [dtype, reported] = GENERATE(std::pair(21, "type variant"), std::pair(99, "unknown dtype 99"));
  entry.set_dtype(dtype);
  bundle.place("v", entry, "whatever");
  bundle.add("w", counting(DType::int8, {1}));
  const Checkpoint checkpoint = open_checkpoint(bundle.write(folder, "p"));
  CHECK(checkpoint.root.as_dict().size() == 1);
  REQUIRE(checkpoint.warnings.size() == 1);
  CHECK_THAT(checkpoint.warnings.front(), Catch::Contains("'v' is left out") && Catch::Contains(reported));
}

TEST_CASE("tensorflow: a block that cannot be read is reported with the names around it", "[tensorflow]") {
  const Folder folder;
  Bundle bundle;
  for (int i = 0; i < 4000; ++i)
    bundle.add(fmt::format("layer_{:04}/weight", i), counting(DType::float32, {2}));
  const bool compressed = GENERATE(false, true);
  bundle.write(folder, "p", compressed);
  const std::string good = read_file(folder.path("p.index"));
  // Two wrong bytes cannot be put right.
  const auto damaged = [&](size_t place) {
    std::string bad = good;
    for (const size_t at : {place, place + 1}) bad[at] = static_cast<char>(bad[at] ^ 0x55);
    folder.write("p.index", bad);
    try {
      (void)open_checkpoint(folder.path("p.index"));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("the damage was not seen");
  };
  CHECK_THAT(damaged(40), Catch::Contains("covers the names from the header up to 'layer_"));
  const std::string later = damaged(good.size() / 2);
  CHECK_THAT(later, Catch::Contains("covers the names behind 'layer_") && Catch::Contains("' up to 'layer_"));
}

TEST_CASE("tensorflow: every byte of the index counts", "[tensorflow]") {
  const Folder folder;
  Bundle bundle;
  for (int i = 0; i < 12; ++i) bundle.add(fmt::format("layer_{}/w", i), counting(DType::float32, {2}));
  bundle.add_slices("part", counting(DType::int8, {4}), {{{0}, {2}}, {{2}, {4}}});
  const bool compressed = GENERATE(false, true);
  const fs::path prefix = bundle.write(folder, "p", compressed);
  const std::string good = read_file(folder.path("p.index"));
  size_t named = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ static_cast<char>(1 << i % 8));
    folder.write("p.index", bad);
    CAPTURE(i);
    try {
      (void)open_checkpoint(folder.path("p.index"));
      FAIL("the damage was not seen");
    } catch (const Error& error) {
      named += Catch::contains(error.what(), "layer_") || Catch::contains(error.what(), "'part'") ? 1 : 0;
    }
  }
  CHECK(named > good.size() / 2);
  folder.write("p.index", std::string(good).replace(100, 1, "\xee"));
  if (!compressed)
    CHECK_THROWS_WITH(open_checkpoint(prefix), Catch::Contains("byte ") && Catch::Contains("'layer_"));
  for (size_t size = 0; size < good.size(); size += 13) {
    folder.write("p.index", good.substr(0, size));
    CHECK_THROWS_WITH(open_checkpoint(folder.path("p.index")),
                      Catch::Contains(size == 0 ? "empty" : "cut short"));
  }
}

TEST_CASE("tensorflow: a flipped byte of a variable is found, whoever reads how much", "[tensorflow]") {
  const Folder folder;
  const Tensor large = counting(DType::float32, {1500, 1000});
  save(dict({{"large/w", large}, {"ok", large.slice(0, 0, 10)}}), folder.path("m"));
  const fs::path data = folder.path("m.data-00000-of-00001");
  std::string bytes = read_file(data);
  const size_t place = GENERATE(0, 3'000'000, 5'999'999);
  bytes[place] = static_cast<char>(bytes[place] ^ 4);
  folder.write(data.filename(), bytes);
  const auto is_named = Catch::Contains("variable 'large/w' is damaged");
  const Tensor tensor = variable(folder.path("m"), "large/w").as_tensor();
  CHECK_THROWS_WITH(tensor.to_bytes(), is_named);
  CHECK_THROWS_WITH(tensor.to_bytes(), is_named);  // and again
  CHECK_NOTHROW(variable(folder.path("m"), "ok").as_tensor().to_bytes());
  const std::vector<std::function<Tensor(const Tensor&)>> uses = {
      [](const Tensor& t) { return t; },
      [](const Tensor& t) { return t.slice(0, 700, 701); },
      [](const Tensor& t) { return t.transpose(0, 1); },
      [](const Tensor& t) { return t.cast(DType::bfloat16); },
      [](const Tensor& t) {
        return Tensor::concat({t, t}, 1);
      },
  };
  for (const auto& use : uses) {
    CHECK_THROWS_WITH(use(variable(folder.path("m"), "large/w").as_tensor()).to_bytes(), is_named);
    WriteOptions options;
    options.format = "safetensors";
    const Value root = dict({{"x", use(variable(folder.path("m"), "large/w").as_tensor())}});
    CHECK_THROWS_WITH(save(root, folder.path("x"), options), is_named);
    CHECK_FALSE(fs::exists(folder.path("x")));
  }
}

TEST_CASE("tensorflow: damaged texts", "[tensorflow]") {
  const Folder folder;
  save(dict({{"names", texts({2}, {"alpha", "beta"})}}), folder.path("m"));
  const std::string data = "m.data-00000-of-00001";
  const std::string good = read_file(folder.path(data));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    folder.write(data, bad);
    const Value names = variable(folder.path("m"), "names");
    CHECK_THROWS_WITH(texts_of(names), Catch::Contains("variable 'names'"));
  }
}
